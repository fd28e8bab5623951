"""The outbox of an attempt: one commit at a time, in order, and a failed one is noticed."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from runlane.domain.events import Notice
from runlane.domain.run import Status
from runlane.errors import LeaseLost
from runlane.orchestration.memory_budget import WorkerMemory
from runlane.orchestration.outbox import Outbox
from runlane.store.queue.claim import Claimed
from runlane.store.queue.record import Recorded, RecordEntry

CLAIMED = Claimed(
    run_id="run_1",
    target="orchestration:main",
    lane="default",
    attempt=1,
    failures=0,
    max_attempts=1,
    ordering_key=None,
    accepted_at_us=1,
    claimed_at_us=1,
    input="{}",
    saved=None,
    notice=Notice("run_1", 1),
)


class Commits:
    """Stores entries one by one, each when the test lets it."""

    def __init__(self) -> None:
        self.begun: list[list[str]] = []
        self.stored: list[list[str]] = []
        self.failure: BaseException | None = None
        self._may_commit = asyncio.Semaphore(0)

    async def record(self, entry: RecordEntry) -> Recorded:
        events = [kind for kind, _ in entry.events]
        self.begun.append(events)
        await self._may_commit.acquire()
        if self.failure is not None:
            raise self.failure
        self.stored.append(events)
        return Recorded(Status.RUNNING, Notice(entry.run_id, 1))

    def commit(self, times: int = 1) -> None:
        for _ in range(times):
            self._may_commit.release()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def outbox_over(commits: Commits) -> Outbox:
    return Outbox(CLAIMED, cast("Any", commits), WorkerMemory(1_000_000).account("default"))


async def test_one_commit_is_under_way_at_a_time() -> None:
    commits = Commits()
    outbox = outbox_over(commits)
    outbox.add_event("one")
    outbox.store_soon()
    await turns()
    for kind in ("two", "three"):
        outbox.add_event(kind)
        outbox.store_soon()
    await turns()
    assert commits.begun == [["one"]]
    commits.commit(2)
    await turns()
    assert commits.stored == [["one"], ["two", "three"]]


async def test_store_returns_when_everything_is_stored() -> None:
    commits = Commits()
    outbox = outbox_over(commits)
    outbox.add_event("one")
    outbox.store_soon()
    await turns()
    outbox.add_event("two")
    storing = asyncio.create_task(outbox.store())
    commits.commit()
    await turns()
    assert not storing.done()
    commits.commit()
    await storing
    assert commits.stored == [["one"], ["two"]]
    assert outbox.pending_bytes == 0


async def test_a_failed_commit_reaches_the_next_caller() -> None:
    commits = Commits()
    outbox = outbox_over(commits)
    commits.failure = LeaseLost("gone")
    outbox.add_event("one")
    outbox.store_soon()
    commits.commit()
    await turns()
    with pytest.raises(LeaseLost):
        outbox.store_soon()


async def test_entries_added_while_the_attempt_ends_are_stored_with_its_end() -> None:
    commits = Commits()
    outbox = outbox_over(commits)
    outbox.add_event("one")
    outbox.store_soon()
    await turns()
    outbox.add_event("two")
    outbox.store_soon()
    outbox.hold_back()
    commits.commit()
    await turns()
    assert commits.begun == [["one"]]
    assert [kind for kind, _ in (await outbox.rest()).events] == ["two"]
