"""What followers assemble of an agent's live answers equals what is recorded, whichever process died in the middle.

A piece carries its offset in the answer; offset 0 restarts the answer, and the `model_response` closes it. Pieces of
an attempt that is over do not count.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from runlane import Status
from runlane.store.orchestration.calls import read_calls
from runlane.testing import RedisServer
from runlane.testing.fake_provider import FakeAnswer, FakeCall, FakeProvider
from tests.chaos.agents import KEY, PROMPT, define, environment, start
from tests.chaos.chaos_tasks import ODD_TEXT
from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.chaos.reader import Reader

FOLLOWERS = 5
TEXT = f"{ODD_TEXT} e\u0301 \u202e \ufeff 👩‍👩‍👧 \U000e0041 \x7f\n" * 2
LIVE = ("text", "thinking", "arguments")
TURNS = [
    FakeAnswer(
        text=f"First. {TEXT}", thinking=f"Hm. {TEXT}", calls=[FakeCall(name="charge", arguments={"order": TEXT})]
    ),
    FakeAnswer(text=f"Last. {TEXT}"),
]
# Slow enough that a worker which is killed in the middle of an answer does not come to its end before.
SLOW = {"piece_chars": 3, "piece_delay_seconds": 0.02}
SLOWER = {**SLOW, "piece_delay_seconds": 0.05}


class Fold:
    """What one follower has of each answer, put together by the rules that clients are given."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        self.live: dict[tuple[str, str], str] = {}
        self.closed: dict[str, dict[str, Any]] = {}
        # Answers of which pieces of more than one attempt came.
        self.attempts: dict[str, set[int]] = defaultdict(set)
        self._attempt = 0
        for frame in frames:
            self._take(json.loads(frame))

    def _take(self, delta: dict[str, Any]) -> None:
        if delta.get("attempt", 0) < self._attempt:
            return
        self._attempt = delta.get("attempt", 0)
        if delta["type"] == "model_response":
            self.closed[delta["answer"]] = delta
        elif delta["type"] in LIVE and "seq" not in delta:
            self.attempts[delta["answer"]].add(delta["attempt"])
            place = (delta["answer"], delta["type"])
            known = "" if delta["offset"] == 0 else self.live[place]
            assert len(known) == delta["offset"], delta
            self.live[place] = known + delta["text"]


pytestmark = pytest.mark.usefixtures("forked_providers")


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider([TURNS[0].model_copy(update=SLOW), TURNS[1].model_copy(update=SLOWER)]) as provider:
        yield provider


async def in_the_middle(reader: Reader, answer: str, kind: str, attempt: int) -> None:
    """Wait until a follower has read some of an answer, of this attempt, and not the end of it."""

    async def has() -> bool:
        pieces = [json.loads(frame) for frame in reader.unnumbered[-20:]]
        here = [one for one in pieces if (one["type"], one.get("answer"), one["attempt"]) == (kind, answer, attempt)]
        return bool(here) and here[-1]["offset"] > 10

    await eventually(has, f"{kind} of {answer}", every=0.01)


async def check(cluster: Cluster, run_id: str, readers: Sequence[Reader]) -> None:
    """Check that every follower has the recorded answers, byte for byte, by its pieces and by the closing events."""
    records = await read_calls(await cluster.app.database(), run_id)
    journal = {row.key: json.loads(row.payload) for row in records if row.kind.value == "model"}
    assert [answer["text"] for answer in journal.values()] == [turn.text for turn in TURNS]
    for reader in readers:
        fold = Fold(reader.frames)
        assert fold.closed.keys() == journal.keys()
        for key, answer in journal.items():
            assert fold.closed[key]["text"].encode() == answer["text"].encode() == fold.live[key, "text"].encode()
            assert fold.closed[key].get("thinking", "") == answer["thinking"] == fold.live.get((key, "thinking"), "")
            arguments = [call["arguments"] for call in answer["calls"]]
            assert [call["arguments"] for call in fold.closed[key]["tool_calls"]] == arguments
            written = fold.live.get((key, "arguments"))
            assert ([json.loads(written)] if written else []) == arguments
    # The next attempt restarted each answer in which a worker had died.
    assert Fold(readers[0].frames).attempts == {"0/model/0": {1, 2}, "0/model/1": {2, 3}}


async def check_secrets(cluster: Cluster, readers: Sequence[Reader]) -> None:
    streams = [b"".join(reader.frames).decode() for reader in readers]
    streams += [process.log_text() for process in cluster.processes]
    tables = await cluster.rows("select table_name from information_schema.tables where table_schema = 'public'")
    for table in {row["table_name"] for row in tables} - {"definitions", "definition_versions"}:
        streams.append(json.dumps(await cluster.rows(f'select * from "{table}"'), default=str))
    for text in streams:
        assert KEY not in text
        assert PROMPT not in text


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_followers_fold_what_is_recorded(
    how: str, make_cluster: MakeCluster, chaos_redis: RedisServer, provider: FakeProvider
) -> None:
    more = {"RUNLANE_REDIS_URL": chaos_redis.url, "RUNLANE_LEASE_SECONDS": "3"}
    cluster = await make_cluster(**environment(provider, **more))
    tool = {"name": "charge", "tool_type": "task", "task": "pay"}
    ask = {"id": "ask", "type": "agent", "agent_id": "helper", "prompt_template": "Go.", "output_key": "ask"}
    await define(cluster, [ask], agent={"tools": ["charge"]}, tools=[tool])
    (url,) = await cluster.start_servers(1)
    (run_id,) = await start(cluster)
    readers = [Reader(run_id) for _ in range(FOLLOWERS)]
    following = [asyncio.create_task(reader.read(url)) for reader in readers]

    async def connected() -> bool:
        for reading in following:
            if reading.done():
                await reading  # it must still run; otherwise raise its error
        return all(reader.received for reader in readers)

    await eventually(connected, "all followers")
    for attempt, (answer, kind) in enumerate([("0/model/0", "text"), ("0/model/1", "text")], 1):
        (worker,) = await cluster.start_workers(1)
        await in_the_middle(readers[0], answer, kind, attempt)
        worker.freeze() if how == "freeze" else worker.kill()
    (last,) = await cluster.start_workers(1)
    if how == "freeze":
        await in_the_middle(readers[0], "0/model/1", "text", 3)
        for worker in cluster.processes:
            if worker is not last and worker.name == "worker":
                worker.thaw()
    run = await cluster.app.wait(run_id, 60)
    assert (run.status, run.result) == (Status.COMPLETED, TURNS[-1].text), run.error
    await asyncio.gather(*following)
    await check(cluster, run_id, readers)
    await check_secrets(cluster, readers)
    await cluster.check_story()
