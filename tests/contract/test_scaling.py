"""The demand for workers: read at one moment, and the same in the view that autoscalers query."""

from __future__ import annotations

import pytest

from runlane.domain.tenant import TenantLimits
from runlane.errors import UnknownLane
from runlane.store.access.tenants import create_tenant
from runlane.store.queue.claim_locks import LaneMemory
from runlane.store.queue.lane_holds import hold_lane
from runlane.store.queue.lanes import LaneChange, declare_lanes, set_lane
from runlane.store.queue.scaling import read_demand
from tests.harness import Store, new_run


async def filled(store: Store) -> None:
    """Four lanes: one with a cap, one of a tenant at its limit, one disabled, one held."""
    await declare_lanes(store.database, ["capped", "tenant", "off", "held"])
    await create_tenant(store.database, "acme", limits=TenantLimits(max_running=3), actor="test")
    for lane in ("capped", "off", "held", "default"):
        await store.add_all(*(new_run(lane=lane) for _ in range(8)))
    await store.add_all(*(new_run(lane="tenant", tenant="acme") for _ in range(8)))
    await set_lane(store.database, "capped", LaneChange(max_slots=5))
    worker, memory = await store.worker(), LaneMemory(only=frozenset({"capped", "tenant"}))
    for _ in range(2):
        await store.claim(worker, 4, memory=memory)
    await set_lane(store.database, "off", LaneChange(enabled=False))
    await hold_lane(store.database, "held", owner="test", reason="a test")
    await store.add(lane="default", delay_us=60_000_000)
    await store.add(lane="default", hold=True)


async def test_only_what_could_start_counts(store: Store) -> None:
    await filled(store)
    found = await read_demand(store.database, concurrency=10)
    lanes = {lane.lane: lane for lane in found.lanes}
    assert {name: lane.startable for name, lane in lanes.items() if name != "capped" and name != "tenant"} == {
        "default": 8,
        "held": 0,
        "off": 0,
    }
    capped, tenant = lanes["capped"], lanes["tenant"]
    assert capped.running + capped.startable == 5
    assert tenant.running + tenant.startable == 3
    assert (lanes["off"].blocked["stopped"], lanes["held"].blocked["stopped"]) == (8, 8)
    assert found.wanted_slots == 16
    assert found.wanted_workers == 2
    assert found.oldest_seconds >= 0


async def test_a_pool_sees_its_own_lanes(store: Store) -> None:
    await filled(store)
    found = await read_demand(store.database, ["capped", "off"], 5)
    assert [lane.lane for lane in found.lanes] == ["capped", "off"]
    assert (found.wanted_slots, found.wanted_workers) == (5, 1)
    with pytest.raises(UnknownLane):
        await read_demand(store.database, ["nowhere"])


async def test_the_view_has_the_same_numbers(store: Store) -> None:
    await filled(store)
    rows = {row["lane"]: row for row in await store.sql("select * from runlane_scaling")}
    found = {lane.lane: lane for lane in (await read_demand(store.database)).lanes}
    assert rows.keys() == found.keys()
    for name, row in rows.items():
        lane = found[name]
        numbers = (row["queued"], row["running"], row["startable"], row["wanted_slots"])
        assert tuple(map(int, numbers)) == (lane.queued, lane.running, lane.startable, lane.running + lane.startable)
        assert 0 <= row["oldest_seconds"] < 3600
