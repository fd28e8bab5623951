"""When the replicator of a memory node sends its next batches. The clock belongs to the tests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from runlane.memory.commit_waiters import CommitWaiters
from runlane.memory.replication_pace import BUSY_CHANGES, GATHER_SECONDS, PAUSE_SECONDS, ReplicationPace


@dataclass
class _Node:
    """Callers and a clock that a test sets."""

    unacknowledged: int = 0
    now: float = 1000.0
    waiters: CommitWaiters = field(default_factory=CommitWaiters)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def pace(self) -> ReplicationPace:
        return ReplicationPace(self.waiters, lambda: self.unacknowledged, lambda: self.now)

    async def is_held_back(self, turn: asyncio.Task[None]) -> bool:
        """Wake the replicator as a commit does; return whether it continues to wait."""
        self.wake.set()
        for _ in range(10):
            await asyncio.sleep(0)
        return not turn.done()


@pytest.fixture
async def node() -> _Node:
    return _Node()


async def test_the_first_round_begins_at_once(node: _Node) -> None:
    node.unacknowledged = BUSY_CHANGES
    await node.pace().turn(node.wake)


async def test_operations_gather_between_rounds(node: _Node) -> None:
    pace = node.pace()
    await pace.turn(node.wake)
    turn = asyncio.create_task(pace.turn(node.wake))
    assert await node.is_held_back(turn)
    node.now += GATHER_SECONDS
    assert not await node.is_held_back(turn)


async def test_callers_of_changes_go_first_for_a_bounded_time(node: _Node) -> None:
    pace = node.pace()
    await pace.turn(node.wake)
    node.unacknowledged = BUSY_CHANGES
    turn = asyncio.create_task(pace.turn(node.wake))
    node.now += PAUSE_SECONDS * 0.99
    assert await node.is_held_back(turn)
    # The callers stay busy; replication continues nevertheless.
    node.now += PAUSE_SECONDS * 0.01
    assert not await node.is_held_back(turn)


async def test_the_pause_ends_when_callers_are_no_longer_busy(node: _Node) -> None:
    pace = node.pace()
    await pace.turn(node.wake)
    node.unacknowledged = BUSY_CHANGES
    turn = asyncio.create_task(pace.turn(node.wake))
    node.now += GATHER_SECONDS
    assert await node.is_held_back(turn)
    node.unacknowledged = BUSY_CHANGES - 1
    assert not await node.is_held_back(turn)


async def test_a_caller_that_waits_for_a_commit_ends_the_pause(node: _Node) -> None:
    pace = node.pace()
    await pace.turn(node.wake)
    node.unacknowledged = BUSY_CHANGES
    turn = asyncio.create_task(pace.turn(node.wake))
    assert await node.is_held_back(turn)
    with node.waiters.waiting("mem_1", 5):
        assert not await node.is_held_back(turn)
        # No pause between further rounds, either, while the caller waits.
        await pace.turn(node.wake)
    turn = asyncio.create_task(pace.turn(node.wake))
    assert await node.is_held_back(turn)
    turn.cancel()


@pytest.mark.parametrize("steps", range(5))
async def test_a_stop_beside_a_commit_ends_the_wait(node: _Node, steps: int) -> None:
    """A replicator that is cancelled just after a commit has woken it must not continue."""
    pace = node.pace()
    await pace.turn(node.wake)
    turn = asyncio.create_task(pace.turn(node.wake))
    assert await node.is_held_back(turn)
    node.wake.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    turn.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert turn.cancelled()
