"""Administration of lanes over HTTP and with the client: creation, kinds, holds, demand, and who may do it."""

from __future__ import annotations

import pytest

from runlane import Client, Forbidden, NotFound, UnknownLane
from runlane.api import demand_cache
from runlane.api.demand_cache import DemandCache
from runlane.errors import Conflict
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.serving import API, Api
from tests.acceptance.api.test_runs import problem_of
from tests.harness import Store


async def test_a_lane_is_created_given_kinds_and_deleted(idle_api: Api) -> None:
    api = idle_api
    waiting = (await api.run("greet", wait=False))["run_id"]
    async with Client(api.url, await api.key()) as client:
        made = await client.admin.create_lane("batch", {"max_slots": 2, "fair": False, "priority_seconds": 30})
        assert (made.name, made.max_slots, made.fair, made.priority_seconds) == ("batch", 2, False, 30)
        with pytest.raises(Conflict, match='The lane "batch" exists'):
            await client.admin.create_lane("batch")
        lane, moved = await client.admin.assign_kinds("batch", ["greet"])
        assert (lane.kinds, moved) == (("greet",), 1)
        assert (await client.get(waiting)).lane == "batch"
        with pytest.raises(Conflict):
            await client.admin.delete_lane("batch")
        assert (await client.admin.unassign_kind("batch", "greet")).kinds == ()
        with pytest.raises(NotFound, match="is not assigned"):
            await client.admin.unassign_kind("batch", "greet")
        await client.cancel(waiting)
        assert (await client.admin.delete_lane("batch")).name == "batch"
        with pytest.raises(UnknownLane):
            await client.admin.delete_lane("batch")
        # A task of this server names the lane.
        with pytest.raises(Conflict, match="Tasks of this server"):
            await client.admin.delete_lane("slow")
    actions = [entry["action"] for entry in (await api.get("/audit", params={"limit": 50})).json()["entries"]]
    assert {"lane.set", "kind.move", "lane.delete"} <= set(actions)


async def test_holds_of_several_owners(idle_api: Api) -> None:
    api = idle_api
    async with Client(api.url, await api.key()) as client:
        mine = await client.admin.hold_lane("default", "maintenance")
        other = await client.admin.hold_lane("default", "restore", owner="restore-17", expires_in_seconds=600)
        assert other.expires_at_us is not None
        assert [hold.owner for hold in await client.admin.holds("default")] == [mine.owner, "restore-17"]
        await client.admin.release_hold("default", other.id)
        (lane,) = [lane for lane in await client.lanes() if lane.name == "default"]
        assert (lane.held, [hold.id for hold in lane.holds]) == (True, [mine.id])
        found = await client.scaling(["default"])
        assert found.startable == 0
        with pytest.raises(NotFound):
            await client.admin.release_hold("default", other.id)
        await client.admin.release_hold("default", mine.id)


async def test_settings_of_a_lane_are_checked_and_shown(idle_api: Api) -> None:
    api = idle_api
    fields = {"fair": False, "priority_seconds": 60, "stale_timeout_minutes": 30}
    answer = await api.client.patch(f"{API}/lanes/default", json=fields)
    assert answer.json()["changed"] == {
        "fair": {"old": True, "new": False},
        "priority_seconds": {"old": 600, "new": 60},
        "stale_timeout_minutes": {"old": None, "new": 30},
    }
    answer = await api.client.patch(f"{API}/lanes/default", json={"stale_timeout_minutes": None})
    assert answer.json()["lane"]["stale_timeout_minutes"] is None
    for wrong in ({"priority_seconds": -1}, {"priority_seconds": 86_401}, {"stale_timeout_minutes": 4}, {"fair": 1}):
        problem_of(await api.client.patch(f"{API}/lanes/default", json=wrong), 422, "invalid_request")
    for wrong in ({"reason": ""}, {"reason": "x" * 501}, {"reason": "x", "expires_in_seconds": 0}, {}):
        problem_of(await api.post("/lanes/default/holds", wrong), 422, "invalid_request")
    problem_of(await api.post("/lanes", {"name": "x" * 65}), 422, "invalid_request")
    problem_of(await api.client.put(f"{API}/lanes/default/kinds", json={"kinds": []}), 422, "invalid_request")
    problem_of(await api.client.put(f"{API}/lanes/nowhere/kinds", json={"kinds": ["a"]}), 404, "unknown_lane")


async def test_a_tenant_may_not_administer_lanes_and_sees_no_owners(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    held = await api.post("/lanes/default/holds", {"reason": "secret plan", "owner": "boss"})
    assert held.status_code == 201
    body = {"permissions": ["workers:view", "workers:manage"]}
    assert (await api.client.put(f"{API}/roles/lanes", json=body)).status_code == 200
    async with Client(api.url, await api.key("lanes", tenant="acme")) as client:
        for call in (
            client.admin.create_lane("mine"),
            client.admin.delete_lane("default"),
            client.admin.assign_kinds("default", ["greet"]),
            client.admin.unassign_kind("default", "greet"),
            client.admin.holds("default"),
            client.admin.hold_lane("default", "mine"),
            client.admin.release_hold("default", held.json()["hold_id"]),
            client.scaling(),
        ):
            with pytest.raises(Forbidden):
                await call
        (lane,) = [lane for lane in await client.lanes() if lane.name == "default"]
        assert (lane.held, lane.holds) == (True, ())


async def test_the_demand_of_a_pool(idle_api: Api) -> None:
    api = idle_api
    for _ in range(3):
        await api.run("wait", wait=False)
    async with Client(api.url, await api.key("viewer")) as client:
        found = await client.scaling(["slow"], concurrency=2)
        assert (found.wanted_slots, found.wanted_workers, found.startable, found.queued) == (3, 2, 3, 3)
        with pytest.raises(UnknownLane):
            await client.scaling(["nowhere"])
    # The numbers are those of the last second, whatever the concurrency.
    again = (await api.get("/scaling", params={"lanes": "slow", "concurrency": 3})).json()
    assert (again["wanted_slots"], again["wanted_workers"]) == (3, 1)
    problem_of(await api.get("/scaling", params={"concurrency": 0}), 422, "invalid_request")


async def test_the_demand_is_read_once_per_second(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DemandCache()
    assert demand_cache._KEEP_SECONDS == 1.0
    monkeypatch.setattr(demand_cache, "_KEEP_SECONDS", 3600.0)
    await store.add()
    first = await cache.read(store.database, None, 1)
    await store.add()
    assert [(await cache.read(store.database, None, slots)).wanted_slots for slots in (1, 2)] == [1, 1]
    # Each set of lanes is read for itself.
    assert (await cache.read(store.database, ["default"], 1)).wanted_slots == 2
    monkeypatch.setattr(demand_cache, "_KEEP_SECONDS", 0.0)
    assert (first.wanted_slots, (await cache.read(store.database, None, 1)).wanted_slots) == (1, 2)


async def test_weights_and_fairness_keys_over_http(idle_api: Api) -> None:
    api = idle_api
    async with Client(api.url, await api.key()) as client:
        made = await client.admin.create_tenant("acme", {"weight": 2.5})
        assert made.weight == 2.5
        assert (await client.admin.set_tenant("acme", {"weight": 0.5})).weight == 0.5
        for wrong in (0.05, 11, "3"):
            answer = await api.client.patch(f"{API}/tenants/acme", json={"weight": wrong})
            problem_of(answer, 422, "invalid_request")
        accepted = await client.enqueue("greet", {}, fairness_key="customer-7")
    problem_of(await api.post("/tasks/greet/run", {"fairness_key": "x" * 201}), 422, "invalid_request")
    problem_of(await api.post("/tasks/greet/run", {"fairness_key": ""}), 422, "invalid_request")
    assert accepted.status == "queued"
