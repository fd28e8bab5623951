"""Edges of claims and takeovers: the run that waits longest, a new lane, a run that has ended."""

from __future__ import annotations

import asyncio
import time

import pytest

from runlane.bus.memory import MemoryBus
from runlane.domain.run import Status
from runlane.domain.slots import WorkerLoad
from runlane.maintenance.reaper import Reaper
from runlane.store.queue import claim_locks
from runlane.store.queue.claim import LaneMemory
from runlane.store.queue.lanes import declare_lanes
from tests.faults import FaultyDatabase
from tests.harness import Store, new_run


async def test_the_only_slot_goes_to_the_run_that_waits_longest(store: Store) -> None:
    requests = [new_run(), new_run(priority=10), new_run()]
    await store.add_all(*requests)
    worker = await store.worker()
    claimed = [(await store.claim(worker, 1))[0].run_id for _ in requests]
    assert claimed == [requests[position].id for position in (1, 0, 2)]


async def test_a_quarantined_run_keeps_no_worker_free_before_it_has_waited_long(store: Store) -> None:
    run_id = await store.add()
    await store.sql("update runs set max_neighbors = 0 where id = :id", id=run_id)
    await store.add()
    assert len(await store.claim(await store.worker(), 2, load=WorkerLoad(active=4))) == 1


async def test_new_lanes_are_locked_instead_of_those_without_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_locks, "_MAX_LOCKS", 2)
    names = [f"lane-{number}" for number in range(4)]
    await declare_lanes(store.database, names)
    worker, memory = await store.worker(), LaneMemory()
    async with asyncio.timeout(20):
        for name in names:
            run_id = await store.add(lane=name)
            assert [claimed.run_id for claimed in await store.claim(worker, memory=memory)] == [run_id]


async def test_a_takeover_leaves_ended_runs_of_the_worker_alone(store: Store) -> None:
    ended, running = await store.add(), await store.add()
    worker = await store.worker()
    first, _ = await store.claim(worker)
    await store.finish(first)
    await store.expire(worker)
    await Reaper(store.settings, store.database, MemoryBus()).run_once()
    assert (await store.status(ended), await store.status(running)) == (Status.COMPLETED, Status.QUEUED)


async def test_free_locks_prove_nothing_after_an_outage(store: Store) -> None:
    """Our own connections broke a moment ago, so those of a living worker may have, too."""
    run_id = await store.add()
    worker = await store.worker(has_lock=True)
    await store.claim_one(worker)
    await store.sql("update workers set heartbeat_at = 1 where id = :id", id=worker)
    database = FaultyDatabase(store.database)
    database.steady_since = time.monotonic()
    await Reaper(store.settings, database, MemoryBus()).run_once()
    assert await store.status(run_id) is Status.RUNNING
