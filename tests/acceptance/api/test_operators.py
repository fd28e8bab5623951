"""What operators do to runs, and what they and callers see: refusals, audit, blocked runs, rates."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from runlane import Client, WrongState
from runlane.domain.tenant import TenantLimits
from runlane.store.access.tenants import create_tenant
from runlane.store.queue.lanes import move_kinds, unassign_kinds
from tests.acceptance.api.serving import API, Api
from tests.acceptance.api.test_runs import problem_of


async def test_a_finished_run_cannot_be_cancelled(api: Api) -> None:
    for task, status in (("greet", "completed"), ("fail", "failed")):
        run = await api.run(task)
        problem = problem_of(await api.post(f"/runs/{run['run_id']}/cancel"), 409, "wrong_state")
        assert problem["message"] == f"Run {run['run_id']} is {status}. Only a run that has not ended can be cancelled."
        async with Client(api.url, await api.key()) as client:
            with pytest.raises(WrongState):
                await client.cancel(run["run_id"])
        with pytest.raises(WrongState):
            await api.parts.app.cancel(run["run_id"])


async def test_operators_changes_of_runs_are_audited(idle_api: Api) -> None:
    api = idle_api
    one, two, three = [(await api.run("greet", wait=False))["run_id"] for _ in range(3)]
    await api.client.patch(f"{API}/runs/{one}", json={"priority": 5})
    await api.client.patch(f"/admin/workers/jobs/{one}/priority", params={"priority": 7})
    await api.post(f"/runs/{one}/cancel")
    await api.post(f"/runs/{one}/cancel")
    await api.client.post(f"/admin/workers/jobs/{two}/cancel")
    await api.post("/runs/cancel", {"filter": {"target": "greet"}})
    me = (await api.get("/me")).json()["key_id"]
    for run_id, actions in ((one, ["run.cancel", "run.priority", "run.priority"]), (two, ["run.cancel"])):
        entries = (await api.get("/audit", params={"subject": run_id})).json()["entries"]
        assert [entry["action"] for entry in entries] == actions
        assert {entry["actor"] for entry in entries} == {me}
        assert (entries[0]["old"], entries[0]["new"]) == ({"status": "queued"}, {"status": "cancelled"})
    moved = (await api.get("/audit", params={"action": "run.priority"})).json()["entries"]
    assert [(entry["old"], entry["new"]) for entry in moved] == [
        ({"priority": 5}, {"priority": 7}),
        ({"priority": 0}, {"priority": 5}),
    ]
    assert len((await api.get("/audit", params={"subject": three})).json()["entries"]) == 1


async def test_a_moved_kind_is_audited(idle_api: Api) -> None:
    database = idle_api.parts.database
    await move_kinds(database, ["greet"], "slow", actor="ops")
    await move_kinds(database, ["greet"], "slow", actor="ops")
    await unassign_kinds(database, ["greet", "wait"], actor="ops")
    entries = (await idle_api.get("/audit", params={"action": "kind.move"})).json()["entries"]
    assert [(entry["subject"], entry["old"], entry["new"]) for entry in entries] == [
        ("greet", {"lane": "slow"}, None),
        ("greet", None, {"lane": "slow"}),
    ]


async def test_a_blocked_run_names_the_run_it_waits_for(idle_api: Api) -> None:
    api = idle_api
    first, second, third = [(await api.run("greet", wait=False, ordering_key="k"))["run_id"] for _ in range(3)]
    for run_id in (second, third):
        assert (await api.get(f"/runs/{run_id}")).json()["blocked_by"] == first
        assert (await api.get(f"/runs/{run_id}/status")).json()["blocked_by"] == first
    async with Client(api.url, await api.key()) as client:
        assert (await client.get(second)).blocked_by == first
    assert (await api.parts.app.get(third)).blocked_by == first
    assert (await api.get(f"/runs/{first}")).json()["blocked_by"] is None
    await api.post(f"/runs/{first}/cancel")
    assert (await api.get(f"/runs/{second}")).json()["blocked_by"] is None
    assert (await api.get(f"/runs/{third}")).json()["blocked_by"] == second


async def test_an_accept_returns_what_is_left_of_the_rate(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test", limits=TenantLimits(rate_per_second=0.01))
    headers = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    accepted = await api.post("/tasks/greet/run", {}, headers=headers)
    assert accepted.status_code == 202
    assert (accepted.headers["ratelimit-limit"], accepted.headers["ratelimit-remaining"]) == ("1", "0")
    assert 90 <= int(accepted.headers["ratelimit-reset"]) <= 100
    refused = await api.post("/tasks/greet/run", {}, headers=headers)
    problem_of(refused, 429, "rate_limited")
    assert refused.headers["ratelimit-remaining"] == "0"
    assert 90 <= int(refused.headers["retry-after"]) <= 100
    free = await api.post("/tasks/greet/run", {})
    assert "ratelimit-limit" not in free.headers


@pytest.mark.parametrize("verb", ["cancel", "retry"])
async def test_a_bulk_change_of_another_tenant_is_not_found(idle_api: Api, verb: str) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    headers = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    run = await api.run("greet", wait=False)
    for tenant in ("default", "none"):
        answer = await api.post(f"/runs/{verb}", {"filter": {"tenant": tenant}}, headers=headers)
        problem_of(answer, 404, "not_found")
    assert (await api.get(f"/runs/{run['run_id']}")).json()["status"] == "queued"


async def test_text_searches_are_bounded_per_key(idle_api: Api) -> None:
    api = idle_api
    run = await api.run("greet", wait=False)
    found = (await api.get("/runs", params={"text": "GREE"})).json()
    assert ([item["run_id"] for item in found["runs"]], found["truncated"]) == ([run["run_id"]], False)
    raw = await api.key("operator")
    headers = {"Authorization": f"Bearer {raw}"}
    principal = await api.parts.authenticator.identify(raw)
    async with AsyncExitStack() as stack:
        for _ in range(api.parts.app.settings.api_max_searches_per_key):
            await stack.enter_async_context(api.parts.searches.turn(principal))
        refused = await api.get("/runs", params={"text": "x"}, headers=headers)
        problem_of(refused, 429, "search_limited")
        assert refused.headers["retry-after"] == "1"
        problem_of(await api.post("/runs/cancel", {"filter": {"text": "x"}}, headers=headers), 429, "search_limited")
        assert (await api.get("/runs", headers=headers)).status_code == 200
        assert (await api.get("/runs", params={"text": "x"})).status_code == 200
    assert (await api.get("/runs", params={"text": "x"}, headers=headers)).status_code == 200
