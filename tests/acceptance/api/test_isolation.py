"""What a tenant sees of a shared platform, and what its keys can do to it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.rate_limits.limiter import ClusterLimiter
from runlane.store.access.keys import create_key
from runlane.store.access.roles import set_role
from runlane.store.access.tenants import create_tenant
from runlane.store.queue.lanes import LaneChange, set_lane
from tests.acceptance.api.serving import API, Api, serving
from tests.acceptance.api.test_runs import problem_of
from tests.harness import eventually


async def silent(reason: str) -> None:
    """Ignore the reason of a wait."""


async def headers_of(api: Api, role: str, tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {await api.key(role, tenant=tenant)}"}


async def test_a_tenant_sees_its_own_credentials_without_provider_messages(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    acme = await headers_of(api, "operator", "acme")
    limiter = ClusterLimiter(api.parts.database)
    try:
        for credential in ("openai", "openai@acme", "openai@other"):
            slot = await limiter.acquire(credential, tokens=7, timeout_seconds=10, on_wait=silent)
            await limiter.slow_down(credential, 30, f"429 for the account of {credential}")
            await slot.release(1)
    finally:
        await limiter.close()
    seen = (await api.get("/limits", headers=acme)).json()["limits"]
    assert [item["credential"] for item in seen] == ["openai@acme"]
    assert seen[0]["backing_off_reason"] is None
    assert seen[0]["backing_off_until"] is not None
    everything = (await api.get("/limits")).json()["limits"]
    reasons = {item["credential"]: item["backing_off_reason"] for item in everything}
    assert reasons["openai@other"] == "429 for the account of openai@other"
    for credential in ("openai", "openai@other"):
        path = f"{API}/limits/{credential}"
        problem_of(await api.client.put(path, json={"in_flight": 0}, headers=acme), 404, "not_found")
        problem_of(await api.client.delete(path, headers=acme), 404, "not_found")
    own = await api.client.put(f"{API}/limits/openai@acme", json={"in_flight": 3}, headers=acme)
    assert own.json()["in_flight"] == 3


async def test_the_beginning_of_an_id_finds_the_runs_of_the_callers_tenant_alone(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    acme = await headers_of(api, "operator", "acme")
    ours = (await api.post("/tasks/wait/run", {"input": {"seconds": 60}})).json()["run_id"]
    theirs = (await api.post("/tasks/wait/run", {"input": {"seconds": 60}}, headers=acme)).json()["run_id"]

    async def found(prefix: str, headers: dict[str, str]) -> list[str]:
        page = (await api.get(f"/runs?id_prefix={prefix}&limit=3", headers=headers)).json()
        assert (page["truncated"], page["next_cursor"]) == (False, None)
        return [run["run_id"] for run in page["runs"]]

    assert await found("run_", acme) == [theirs]
    assert await found(theirs[:-1], acme) == [theirs]
    assert await found(ours[:-1], acme) == []
    assert await found(ours, acme) == []
    for wrong in ("run_xyz", "0192f3", ours + "0"):
        problem_of(await api.get(f"/runs?id_prefix={wrong}", headers=acme), 422, "invalid_request")


async def test_a_tenant_sees_its_own_numbers_of_lanes_and_workers(own_app: App) -> None:
    async with serving(own_app, worker=WorkerOptions()) as api:
        database = api.parts.database
        await create_tenant(database, "acme", actor="test")
        acme = await headers_of(api, "operator", "acme")
        await set_lane(database, "secret-project", LaneChange(), create=True)
        await set_lane(database, "slow", LaneChange(max_slots=5))
        ours = [await api.run("wait", wait=False, input={"seconds": 60}) for _ in range(2)]
        theirs = (await api.post("/tasks/wait/run", {"input": {"seconds": 60}}, headers=acme)).json()

        async def all_run() -> bool:
            return (await api.client.get("/admin/workers/status")).json()["running_count"] == 3

        await eventually(all_run, "three running runs")
        (worker,) = (await api.get("/workers", headers=acme)).json()["workers"]
        assert (worker["hostname"], worker["pid"], worker["targets"], worker["active_jobs"]) == (None, None, None, 1)
        (whole,) = (await api.get("/workers")).json()["workers"]
        assert whole["hostname"]
        assert whole["pid"]
        status = (await api.client.get("/admin/workers/status", headers=acme)).json()
        assert [job["job_id"] for job in status["running_jobs"]] == [theirs["run_id"]]
        assert (status["running_count"], status["total_queued"], status["slots_in_use"]) == (1, 0, 1)
        for path in ("/api/v2/lanes", "/admin/workers/lanes"):
            lanes = {lane["name"]: lane for lane in (await api.client.get(path, headers=acme)).json()["lanes"]}
            assert "secret-project" not in lanes
            assert (lanes["slow"]["running"], lanes["slow"]["slots_available"]) == (1, None)
        refused = problem_of(await api.get("/lanes/secret-project", headers=acme), 404, "unknown_lane")
        assert "secret-project" not in refused["message"].replace('No lane "secret-project"', "")
        for run in (*ours, theirs):
            await api.post(f"/runs/{run['run_id']}/cancel")


async def test_the_status_counts_lanes_without_a_cap(own_app: App) -> None:
    async with serving(own_app, worker=WorkerOptions(concurrency=4)) as api:
        run = await api.run("wait", wait=False, input={"seconds": 60})

        async def runs() -> bool:
            status = (await api.client.get("/admin/workers/status")).json()
            return (status["slots_in_use"], status["total_slots"]) == (1, 4)

        await eventually(runs, "one of four slots in use")
        lanes = [lane["name"] for lane in (await api.get("/lanes")).json()["lanes"]]
        for lane in lanes:
            await api.client.patch(f"{API}/lanes/{lane}", json={"max_slots": 1 if lane == "slow" else 0})
        status = (await api.client.get("/admin/workers/status")).json()
        assert (status["slots_in_use"], status["total_slots"]) == (1, 1)
        await api.post(f"/runs/{run['run_id']}/cancel")


async def test_a_tenant_neither_changes_shared_lanes_nor_reads_the_metrics_of_all(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    await set_lane(api.parts.database, "secret-project", LaneChange(), create=True)
    acme = await headers_of(api, "operator", "acme")
    for path in (f"{API}/lanes/default", "/admin/workers/lanes/default"):
        problem_of(await api.client.patch(path, json={"enabled": False}, headers=acme), 403, "forbidden")
    assert (await api.get("/lanes/default")).json()["enabled"]
    assert "secret-project" not in (await api.client.get("/metrics", headers=acme)).text
    for role in ("viewer", "operator", "developer"):
        headers = await headers_of(api, role, "acme")
        problem_of(await api.client.get("/metrics", headers=headers), 403, "forbidden")
    platform = await headers_of(api, "operator", "default")
    answer = await api.client.patch(f"{API}/lanes/default", json={"max_slots": 4}, headers=platform)
    assert answer.json()["lane"]["max_slots"] == 4
    assert "secret-project" in (await api.client.get("/metrics", headers=platform)).text


async def test_a_key_revokes_nothing_above_its_own_grant(idle_api: Api) -> None:
    api = idle_api
    database = api.parts.database
    await create_tenant(database, "acme", actor="test")
    await set_role(database, "clerk", ["keys:manage", "runs:read"], actor="test")
    clerk = await headers_of(api, "clerk", "acme")
    ids = {
        role: (await create_key(database, role, role, actor="test", tenant="acme"))[0].id
        for role in ("operator", "platform_admin", "clerk")
    }
    for role in ("operator", "platform_admin"):
        problem = problem_of(await api.client.delete(f"{API}/keys/{ids[role]}", headers=clerk), 403, "forbidden")
        assert "platform_admin" in problem["message"]
    assert (await api.client.delete(f"{API}/keys/{ids['clerk']}", headers=clerk)).status_code == 200
    listed = {key["id"]: key for key in (await api.get("/keys", params={"tenant": "acme"})).json()["keys"]}
    assert listed[ids["operator"]]["revoked_at"] is None
    foreign = (await create_key(database, "other", "viewer", actor="test"))[0].id
    problem_of(await api.client.delete(f"{API}/keys/{foreign}", headers=clerk), 404, "not_found")
    assert (await api.client.delete(f"{API}/keys/{ids['operator']}")).status_code == 200


async def test_a_key_makes_none_that_outlives_it(idle_api: Api) -> None:
    api = idle_api
    mine = (await api.post("/keys", {"name": "a", "role": "platform_admin", "expires_in_seconds": 3600})).json()
    headers = {"Authorization": f"Bearer {mine['key']}"}
    longer = {"name": "b", "role": "viewer", "expires_in_seconds": 7200}
    problem = problem_of(await api.post("/keys", longer, headers=headers), 403, "forbidden")
    assert "expires_in_seconds of at most 3" in problem["message"]
    assert "b" not in [key["name"] for key in (await api.get("/keys")).json()["keys"]]
    same = (await api.post("/keys", {"name": "c", "role": "viewer"}, headers=headers)).json()
    assert same["expires_at"] == mine["expires_at"]
    shorter = await api.post("/keys", {"name": "d", "role": "viewer", "expires_in_seconds": 60}, headers=headers)
    left = datetime.fromisoformat(mine["expires_at"]) - datetime.fromisoformat(shorter.json()["expires_at"])
    assert left > timedelta(minutes=50)
    assert (await api.post("/keys", {"name": "e", "role": "viewer"})).json()["expires_at"] is None


def _spender(**fields: Any) -> dict[str, Any]:
    answers: list[dict[str, Any]] = [
        {"tool": "work", "arguments": {}, "tokens": 1, "cost_usd": 2.0},
        {"say": "done", "cost_usd": 0.1},
    ]
    return {"id": "spender", "model": "scripted", "answers": answers, "tools": ["work"], **fields}


_WORK = {"name": "work", "tool_type": "python", "code": "result = 1", "input_schema": {"type": "object"}}


@pytest.mark.parametrize("owner", ["platform", "tenant"])
async def test_only_callers_that_may_set_a_cap_lift_it(own_app: App, owner: str) -> None:
    async with serving(own_app, worker=WorkerOptions()) as api:
        database = api.parts.database
        cap = {"max_cost_usd_per_day": 1.0, "on_cap": "ask"}
        await api.post("/tenants", {"id": "acme", **(cap if owner == "platform" else {})})
        agent = _spender(**(cap if owner == "tenant" else {}))
        bodies = parse_bodies({"agents": [agent], "tools": [_WORK]})
        await sync_definitions(database, "acme", bodies, actor="test")
        acme = await headers_of(api, "operator", "acme")
        run = (await api.post("/agents/spender/run", {"message": "go"}, headers=acme)).json()
        path = f"/runs/{run['run_id']}"

        async def has_question() -> bool:
            return bool((await api.get(f"{path}/waits", headers=acme)).json()["waits"])

        await eventually(has_question, "the question")
        (question,) = (await api.get(f"{path}/waits", headers=acme)).json()["waits"]
        assert question["answerable_by"] == owner
        answered = await api.post(f"{path}/resume", {"response": {"decision": "allow"}}, headers=acme)
        if owner == "platform":
            assert "platform admin" in question["prompt"]
            problem_of(answered, 403, "forbidden")
            answered = await api.post(f"{path}/resume", {"response": {"decision": "allow"}})
        assert answered.status_code == 202, answered.text
        ended = (await api.get(f"{path}/wait", params={"timeout_seconds": 60})).json()
        assert (ended["status"], ended["result"]) == ("completed", "done")
