"""`max_running`: exact in the whole cluster under concurrent claims, and without cost for other tenants."""

from __future__ import annotations

import asyncio

import pytest

from runlane.domain.run import Status
from runlane.domain.tenant import TenantLimits
from runlane.store.access.tenants import TenantChange, create_tenant, set_tenant
from runlane.store.queue import claim_survey
from runlane.store.queue.claim_locks import LaneMemory
from runlane.store.queue.lanes import LaneChange, declare_lanes, set_lane
from runlane.store.sql.database import open_database
from tests.harness import Store, new_run

ACTOR = "test"


async def tenant(store: Store, name: str, **limits: int) -> None:
    await create_tenant(store.database, name, limits=TenantLimits(**limits), actor=ACTOR)


async def running(store: Store, name: str) -> int:
    rows = await store.sql("select count(*) as n from runs where tenant = :t and status = 'running'", t=name)
    return rows[0]["n"]


async def test_the_bound_is_exact_while_many_claim_at_once(store: Store) -> None:
    await tenant(store, "acme", max_running=3)
    await declare_lanes(store.database, ["media"])
    await store.add_all(*(new_run(tenant="acme", lane=lane) for lane in ("default", "media") for _ in range(30)))
    databases = [await open_database(store.settings) for _ in range(4)]
    most = 0

    async def work(mine: Store) -> None:
        nonlocal most
        worker, memory = await mine.worker(), LaneMemory()
        while await store.sql("select 1 from runs where status = 'queued' limit 1"):
            claims = await mine.claim(worker, 5, memory=memory)
            most = max(most, await running(mine, "acme"))
            for claimed in claims:
                await mine.finish(claimed)

    try:
        async with asyncio.timeout(120):
            await asyncio.gather(*(work(Store(store.settings, database)) for database in databases))
    finally:
        for database in databases:
            await database.close()
    assert 1 <= most <= 3
    (ended,) = await store.sql("select count(*) as n from runs where status = 'completed'")
    assert ended["n"] == 60


async def test_a_change_holds_when_it_returns(store: Store) -> None:
    await tenant(store, "acme", max_running=5)
    await store.add_all(*(new_run(tenant="acme") for _ in range(20)))
    worker, memory = await store.worker(), LaneMemory()
    assert len(await store.claim(worker, 20, memory=memory)) == 5
    await set_tenant(store.database, "acme", TenantChange(max_running=8), actor=ACTOR)
    assert len(await store.claim(worker, 20, memory=memory)) == 3
    await set_tenant(store.database, "acme", TenantChange(max_running=2), actor=ACTOR)
    assert await store.claim(worker, 20, memory=memory) == []
    await set_tenant(store.database, "acme", TenantChange(unlimited=frozenset({"max_running"})), actor=ACTOR)
    assert len(await store.claim(worker, 20, memory=memory)) == 12


async def test_a_bound_counts_what_was_accepted_and_started_before_it(store: Store) -> None:
    await create_tenant(store.database, "acme", actor=ACTOR)
    await store.add_all(*(new_run(tenant="acme") for _ in range(10)))
    worker, memory = await store.worker(), LaneMemory()
    claims = await store.claim(worker, 4, memory=memory)
    await set_tenant(store.database, "acme", TenantChange(max_running=4), actor=ACTOR)
    assert await store.claim(worker, 10, memory=memory) == []
    await store.finish(claims[0])
    assert len(await store.claim(worker, 10, memory=memory)) == 1


async def test_a_tenant_at_its_bound_does_not_hold_up_the_others(store: Store) -> None:
    await tenant(store, "acme", max_running=1)
    await create_tenant(store.database, "other", actor=ACTOR)
    await store.add_all(*(new_run(tenant="acme") for _ in range(200)))
    waiting = await store.add(tenant="other")
    worker, memory = await store.worker(), LaneMemory()
    claims = [*await store.claim(worker, 10, memory=memory), *await store.claim(worker, 10, memory=memory)]
    assert sorted(claimed.tenant for claimed in claims) == ["acme", "other"]
    assert waiting in {claimed.run_id for claimed in claims}


async def test_the_cap_of_a_lane_holds_over_its_tenants(store: Store) -> None:
    for name in ("one", "two"):
        await tenant(store, name, max_running=10)
        await store.add_all(*(new_run(tenant=name) for _ in range(10)))
    await store.add_all(*(new_run() for _ in range(10)))
    await set_lane(store.database, "default", LaneChange(max_slots=7))
    assert len(await store.claim(await store.worker(), 30)) == 7


async def test_inside_a_tenant_runs_come_by_priority_and_age(store: Store) -> None:
    await tenant(store, "acme", max_running=2)
    late = await store.add(tenant="acme")
    later = await store.add(tenant="acme")
    first = await store.add(tenant="acme", priority=50)
    claims = await store.claim(await store.worker(), 10)
    assert [claimed.run_id for claimed in claims] == [first, late]
    assert await store.status(later) is Status.QUEUED


async def test_a_single_free_slot_goes_to_the_run_that_waits_longest(store: Store) -> None:
    await tenant(store, "acme", max_running=10)
    order = [await store.add(tenant="acme" if number % 2 else "default") for number in range(6)]
    worker, memory = await store.worker(), LaneMemory()
    assert [(await store.claim(worker, 1, memory=memory))[0].run_id for _ in order] == order


@pytest.mark.parametrize("only", [None, frozenset({"default"})])
async def test_more_tenants_than_one_survey_reads_are_all_served(store: Store, only: frozenset[str] | None) -> None:
    names = [f"tenant-{number:03}" for number in range(2 * claim_survey.MAX_QUEUES + 5)]
    for name in names:
        await tenant(store, name, max_running=1)
    await store.add_all(*(new_run(tenant=name) for name in names for _ in range(2)))
    worker, memory = await store.worker(), LaneMemory(only=only)
    claims = await store.claim(worker, 1000, memory=memory)
    while more := await store.claim(worker, 1000, memory=memory):
        claims += more
    assert sorted(claimed.tenant for claimed in claims) == names
