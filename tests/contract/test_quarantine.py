"""Lost workers: only a run that was alone is blamed, and a run that loses workers gets fewer and fewer neighbors."""

from __future__ import annotations

import pytest

from runlane.bus.memory import MemoryBus
from runlane.domain.run import Status
from runlane.domain.slots import WorkerLoad
from runlane.domain.tenant import TenantLimits
from runlane.maintenance.reaper import Reaper
from runlane.store.access.tenants import create_tenant
from runlane.store.queue.claim_locks import LaneMemory
from runlane.store.queue.lanes import LaneChange, set_lane
from runlane.store.queue.revival import retry_run
from tests.harness import Store


async def lose(store: Store, worker_id: str) -> None:
    await store.expire(worker_id)
    await Reaper(store.settings, store.database, MemoryBus()).run_once()


async def row(store: Store, run_id: str) -> tuple[int, int, int | None]:
    (found,) = await store.sql("select losses, lone_losses, max_neighbors from runs where id = :id", id=run_id)
    return found["losses"], found["lone_losses"], found["max_neighbors"]


async def lose_together(store: Store, run_ids: list[str], times: int) -> None:
    """Lose workers that execute all of these runs, as if they had been started together each time."""
    for _ in range(times):
        await store.make_due()
        await store.sql("update runs set max_neighbors = null where status = 'queued'")
        worker = await store.worker()
        claims = await store.claim(worker, len(run_ids))
        assert {claimed.run_id for claimed in claims} == set(run_ids)
        await lose(store, worker)


async def test_a_run_beside_others_counts_no_loss_of_its_own(store: Store) -> None:
    run_ids = [await store.add(max_losses=0) for _ in range(3)]
    await lose_together(store, run_ids, 1)
    for run_id in run_ids:
        assert await store.status(run_id) is Status.QUEUED
        assert await row(store, run_id) == (1, 0, None)


async def test_a_run_that_was_alone_counts_a_loss(store: Store) -> None:
    run_id = await store.add(max_losses=0)
    await lose_together(store, [run_id], 1)
    assert await store.status(run_id) is Status.FAILED
    assert await row(store, run_id) == (1, 1, None)


async def test_the_first_loss_costs_no_time_and_each_further_one_more(store: Store) -> None:
    run_ids = [await store.add() for _ in range(2)]
    delays: list[float] = []
    for _ in range(4):
        await lose_together(store, run_ids, 1)
        (found,) = await store.sql("select due_at, status from runs where id = :id", id=run_ids[0])
        (ended,) = await store.sql("select max(ended_at) as at from run_attempts where run_id = :id", id=run_ids[0])
        delays.append(0.0 if found["status"] == "queued" else round((found["due_at"] - ended["at"]) / 1e6))
    assert delays == [0, 1, 2, 4]


@pytest.mark.parametrize(("together", "neighbors"), [(51, 24), (8, 3), (4, 1), (3, 0), (2, 0), (1, 0)])
async def test_from_the_second_loss_on_the_company_is_halved(store: Store, together: int, neighbors: int) -> None:
    run_ids = [await store.add() for _ in range(together)]
    await lose_together(store, run_ids, 2)
    assert {(await row(store, run_id))[2] for run_id in run_ids} == {neighbors}


async def test_a_run_that_kills_its_workers_is_found_and_the_others_complete(store: Store) -> None:
    """51 runs, one of which kills every worker that executes it."""
    poison = await store.add(max_losses=2)
    innocent = [await store.add(max_losses=2) for _ in range(50)]
    kills = 0
    while await store.sql("select 1 from runs where ended_at is null limit 1"):
        await store.make_due()
        worker, memory = await store.worker(), LaneMemory()
        claims = await store.claim(worker, 60, memory=memory)
        if poison in {claimed.run_id for claimed in claims}:
            kills += 1
            await lose(store, worker)
        else:
            for claimed in claims:
                await store.finish(claimed)
        assert kills <= 10
    assert await store.status(poison) is Status.FAILED
    assert {await store.status(run_id) for run_id in innocent} == {Status.COMPLETED}


async def test_a_quarantined_run_waits_until_its_worker_has_few_enough_others(store: Store) -> None:
    run_id = await store.add()
    await store.sql("update runs set max_neighbors = 1 where id = :id", id=run_id)
    worker = await store.worker()
    assert await store.claim(worker, load=WorkerLoad(active=2)) == []
    (claimed,) = await store.claim(worker, load=WorkerLoad(active=1))
    assert (claimed.run_id, claimed.max_neighbors) == (run_id, 1)


async def test_ordinary_runs_stay_away_from_a_worker_with_a_quarantined_run(store: Store) -> None:
    for _ in range(5):
        await store.add()
    worker = await store.worker()
    assert await store.claim(worker, load=WorkerLoad(active=1, max_active=1)) == []
    assert len(await store.claim(worker, load=WorkerLoad(active=1, max_active=3))) == 2


async def test_one_worker_makes_room_for_a_run_that_waits_too_long(store: Store) -> None:
    run_id = await store.add()
    await store.sql("update runs set max_neighbors = 0, accepted_at = accepted_at - 6000000 where id = :id", id=run_id)
    for _ in range(10):
        await store.add()
    workers = [await store.worker() for _ in range(3)]
    counts = [len(await store.claim(worker, 2, load=WorkerLoad(active=4))) for worker in workers]
    assert sorted(counts) == [0, 2, 2]
    maker = workers[counts.index(0)]
    (claimed,) = await store.claim(maker, 2, load=WorkerLoad(active=0))
    assert claimed.run_id == run_id
    assert len(await store.claim(maker, 2, load=WorkerLoad(active=4))) == 2


async def test_no_worker_makes_room_for_what_it_cannot_execute(store: Store) -> None:
    unknown = await store.add(target="elsewhere")
    await store.sql("update runs set max_neighbors = 0, accepted_at = accepted_at - 6000000 where id = :id", id=unknown)
    await store.add()
    assert len(await store.claim(await store.worker(), 2, load=WorkerLoad(active=4))) == 1


async def test_the_bounds_of_lane_and_tenant_hold_for_quarantined_runs(store: Store) -> None:
    await create_tenant(store.database, "acme", limits=TenantLimits(max_running=1), actor="test")
    await set_lane(store.database, "media", LaneChange(max_slots=1), create=True)
    in_lane = [await store.add(lane="media") for _ in range(2)]
    of_tenant = [await store.add(tenant="acme") for _ in range(2)]
    await store.sql("update runs set max_neighbors = 20")
    claims = await store.claim(await store.worker(), 10)
    assert sorted(claimed.run_id for claimed in claims) == sorted([in_lane[0], of_tenant[0]])
    assert await store.claim(await store.worker(), 10) == []


async def test_a_retry_by_a_person_begins_alone(store: Store) -> None:
    run_id = await store.add(max_losses=1)
    await lose_together(store, [run_id], 2)
    assert await store.status(run_id) is Status.FAILED
    await retry_run(store.database, run_id)
    assert await row(store, run_id) == (0, 0, 0)
