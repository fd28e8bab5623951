"""The newest checkpoint of an attempt in memory: it is used only if every value of it is known."""

from __future__ import annotations

from runlane.domain.text import dump_json
from runlane.graphs.recent_checkpoint import RecentCheckpoint
from runlane.store.threads.graph_writes import GraphWrites, StoredCheckpoint, StoredValue, StoredWrite

THREAD = "thread"


def _checkpoint(name: str, versions: dict[str, str], *stored: str, ns: str = "", next_nodes: int = 0) -> GraphWrites:
    """Return a checkpoint with the values of these channels; the value of a channel is its version."""
    snapshot = dump_json({"next": ["node"] * next_nodes})
    row = StoredCheckpoint(THREAD, ns, name, None, "msgpack", b"", dump_json(versions), "{}", snapshot)
    values = [
        StoredValue(THREAD, ns, channel, versions[channel], "bytes", versions[channel].encode()) for channel in stored
    ]
    return GraphWrites(checkpoints=(row,), values=tuple(values))


def _found(recent: RecentCheckpoint, name: str | None = None) -> dict[str, bytes] | None:
    found = recent.find(THREAD, "", name)
    return None if found is None else {channel: value for channel, (_, value) in found.values.items()}


def test_later_checkpoints_share_the_values_of_earlier_ones() -> None:
    recent = RecentCheckpoint(THREAD)
    recent.learn({"a": "1", "b": "1"}, {"a": ("bytes", b"1"), "b": ("bytes", b"1")})
    recent.add(_checkpoint("c1", {"a": "2", "b": "1"}, "a"))
    assert _found(recent) == {"a": b"2", "b": b"1"}
    recent.add(_checkpoint("c2", {"a": "2", "b": "2"}, "b"))
    assert _found(recent) == _found(recent, "c2") == {"a": b"2", "b": b"2"}
    assert _found(recent, "c1") is None
    assert recent.find("other", "", None) is None


def test_a_checkpoint_with_an_unknown_value_is_unknown() -> None:
    for versions in ({"a": "1", "b": "1"}, {"a": "1", "b": "3"}):
        recent = RecentCheckpoint(THREAD)
        recent.add(_checkpoint("c1", {"a": "1", "b": "2"}, "a", "b"))
        assert _found(recent) == {"a": b"1", "b": b"2"}
        # A channel in another version, which this attempt has not written.
        recent.add(_checkpoint("c2", versions))
        assert (_found(recent), recent.settled()) == (None, None)
    recent = RecentCheckpoint(THREAD)
    recent.add(_checkpoint("c1", {"a": "1", "b": "1"}, "a"))
    assert (_found(recent), recent.settled()) == (None, None)


def test_an_older_checkpoint_and_those_of_subgraphs_change_nothing() -> None:
    recent = RecentCheckpoint(THREAD)
    recent.add(_checkpoint("c2", {"a": "2"}, "a"))
    recent.add(_checkpoint("c1", {"a": "1"}, "a"))
    recent.add(_checkpoint("c3", {"a": "3"}, "a", ns="sub:1"))
    assert _found(recent) == {"a": b"2"}


def test_a_checkpoint_is_settled_if_no_task_follows_and_nothing_is_written_to_it() -> None:
    recent = RecentCheckpoint(THREAD)
    recent.add(_checkpoint("c1", {"a": "1"}, "a", next_nodes=1))
    assert recent.settled() is None
    recent.add(_checkpoint("c2", {"a": "2"}, "a"))
    assert recent.settled() == {"a": ("bytes", b"2")}
    recent.add(GraphWrites(writes=(StoredWrite(THREAD, "", "c2", "task", 0, "", "a", "bytes", b"3"),)))
    assert recent.settled() is None
