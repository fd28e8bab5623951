"""The readers of a tail: the end of a stream reaches them, whatever happens at the same moment."""

from __future__ import annotations

import pytest

from runlane.api import tail as tail_module
from runlane.api.tail import Follower, Tail
from runlane.bus.memory import MemoryBus
from runlane.domain.events import Delta, Notice, StoredEvent
from runlane.errors import Unauthorized
from runlane.store.queue.run_changes import cancel_run
from tests.harness import Store


async def follow_live(store: Store) -> tuple[Tail, Follower, str]:
    """Return a reader that has caught up and follows the feed."""
    run_id = await store.add()
    tail = Tail(store.database, MemoryBus())
    follower = await tail.follow(run_id, 0)
    assert b'"type":"queued"' in await follower.next(10)
    return tail, follower, run_id


def line(seq: int, kind: str = "log") -> StoredEvent:
    return StoredEvent(seq, kind, 1, 0, "{}")


async def test_an_event_does_not_reopen_a_stream_that_was_shut(store: Store) -> None:
    _, follower, _ = await follow_live(store)
    follower.on_event(line(2), b"two")
    follower.shut()
    follower.on_event(line(3), b"three")
    assert await follower.next(10) == b"two"
    assert follower.ended
    assert not follower.complete


async def test_an_expelled_reader_gets_nothing_that_waits(store: Store) -> None:
    _, follower, _ = await follow_live(store)
    follower.on_event(line(2), b"two")
    refusal = Unauthorized()
    follower.revoke(refusal)
    follower.on_event(line(3, "done"), b"three")
    follower.on_delta(b"delta", repeat=False)
    assert await follower.next(10) == b""
    assert follower.ended
    assert not follower.complete
    assert follower.refusal is refusal


async def test_a_reader_that_is_expelled_while_it_reads_the_database_gets_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await store.add()
    await cancel_run(store.database, run_id)
    tail = Tail(store.database, MemoryBus())
    follower = await tail.follow(run_id, 0)
    page = tail.page

    async def expel_meanwhile(run_id: str, after: int) -> object:
        lines = await page(run_id, after)
        follower.revoke(Unauthorized())
        return lines

    monkeypatch.setattr(tail, "page", expel_meanwhile)
    assert await follower.next(10) == b""
    assert follower.ended


class Types:
    """The encoding of a reader that shows the types of events."""

    def event(self, run_id: str, line: StoredEvent) -> bytes:
        return line.type.encode() + b" "

    def gap(self, run_id: str, first_seq: int) -> bytes:
        return b""


async def test_readers_of_a_new_run_get_the_events_after_its_acceptance(store: Store) -> None:
    tail = Tail(store.database, MemoryBus())
    await tail.start()
    try:
        run_id = await store.add()
        readers = [tail.follow_new(run_id, Types())]
        await store.claim_one()
        assert await readers[0].next(10) == b"worker_picked_up "
        # The feed has moved on, so this one reads the database first.
        readers.append(tail.follow_new(run_id, Types()))
        await cancel_run(store.database, run_id)
        for before, reader in zip((b"worker_picked_up ", b""), readers, strict=True):
            received = before
            while b"cancel" not in received:
                received += await reader.next(10)
            assert received.split() == [b"worker_picked_up", b"cancel_requested"]
            reader.close()
    finally:
        await tail.stop()


async def test_the_notice_of_the_claim_reaches_the_reader_of_a_new_run_without_a_read(store: Store) -> None:
    run_id = await store.add()
    bus = MemoryBus()
    # Its loop is not started, so it reads nothing.
    tail = Tail(store.database, bus)
    reader = tail.follow_new(run_id, Types())
    claimed = await store.claim_one()
    bus.publish([claimed.notice])
    assert await reader.next(0) == b"worker_picked_up "
    reader.close()


async def test_the_end_of_a_new_run_ends_its_reader(store: Store) -> None:
    tail = Tail(store.database, MemoryBus())
    await tail.start()
    try:
        run_id = await store.add()
        readers = [tail.follow_new(run_id, Types()) for _ in range(2)]
        await cancel_run(store.database, run_id)
        for reader in readers:
            received = b""
            while not reader.ended:
                received += await reader.next(10)
            assert received == b"done "
            assert reader.complete
            reader.close()
    finally:
        await tail.stop()


@pytest.mark.parametrize(("encoding", "announced"), [(None, True), (Types(), False)])
async def test_only_a_reader_of_live_text_has_it_repeated(
    store: Store, encoding: Types | None, *, announced: bool
) -> None:
    run_id = await store.add()
    bus = MemoryBus()
    joined: list[str] = []
    bus.on_reader(joined.append)
    tail = Tail(store.database, bus)
    tail.follow_new(run_id, encoding)
    reader = await tail.follow(run_id, 0, encoding)
    assert await reader.next(10)
    assert joined == ([run_id] * 2 if announced else [])


async def test_the_reader_that_leaves_last_ends_the_feed(store: Store) -> None:
    tail, follower, run_id = await follow_live(store)
    other = await tail.follow(run_id, 1)
    closed: list[str] = []
    follower.when_closed(lambda: closed.append("closed"))
    assert tail.followers == 2
    follower.close()
    assert (tail.followers, closed) == (1, ["closed"])
    other.close()
    other.close()
    assert tail.followers == 0


async def test_repeats_reach_only_readers_that_have_just_joined_or_missed_something(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await store.add()
    bus = MemoryBus()
    announced: list[str] = []
    bus.on_reader(announced.append)
    tail = Tail(store.database, bus)
    monkeypatch.setattr(tail_module, "REPEATS_SECONDS", -1.0)
    early, late = await tail.follow(run_id, 0), await tail.follow(run_id, 0)
    assert await early.next(10)
    monkeypatch.setattr(tail_module, "REPEATS_SECONDS", 60.0)
    assert await late.next(10)
    assert announced == [run_id, run_id]
    bus.send_delta(Delta(run_id, 1, "text", '{"text":"so far"}', repeat=True))
    assert b"so far" in await late.next(10)
    assert await early.next(0) == b""
    # All of them missed what the bus could not deliver until then.
    bus.publish([Notice(run_id, -1)])
    assert announced == [run_id] * 3
    bus.send_delta(Delta(run_id, 1, "text", '{"text":"so far"}', repeat=True))
    assert b"so far" in await early.next(10)
