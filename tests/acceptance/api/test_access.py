"""Every endpoint and every role: which callers are admitted or refused, and that other tenants' records do not exist.

The table is made from the application's routes, so a new route is in it, and one without a declared permission fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, APIWebSocketRoute, iter_route_contexts

from runlane.api.auth import RequestAccess, RequiredPermission
from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.domain.access import BUILT_IN_ROLES, PLATFORM_ADMIN, Permission
from runlane.settings import Settings
from runlane.store.access.roles import set_role
from runlane.store.access.tenants import TenantChange, create_tenant, set_tenant
from tests.acceptance.api.serving import API, Api, copy_of, process, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_runs import problem_of
from tests.scale import scaled

# A webhook is verified by the signature of its sender.
# A browser signs in with a key in the body, an action link is its own credential, and the files of the dashboard are
# public: each has tests of its own.
UNKEYED = {"/hooks/{token}", "/answer/{token}", "/answer/slack", "/api/v2/ui/session", "/", "/ui", "/ui/{path:path}"}
METADATA = {"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"}
PUBLIC = {"/health", "/live", "/ready", "/docs", "/openapi.json", "/ok", "/info", "/api/v2/info", *UNKEYED, *METADATA}
# A socket authenticates its handshake itself, and has tests of its own.
SOCKETS = {"/threads/{thread_id}/stream/events"}
RUN_ID = "{run_id}"
UNKNOWN_KEY = "Bearer sk-rl-" + "0" * 64
HOURLY = {"id": "hourly", "target": {"kind": "task", "name": "greet"}, "spec": [{"every_seconds": 3600}]}
# A valid body for each route that needs one, by the end of its method and path.
UNKNOWN_THREAD = "00000000-0000-4000-8000-000000000000"
MEMORY = "/api/v2/memory/memories/{memory_id}"
TENANT_ROLES = tuple(name for name in BUILT_IN_ROLES if name != PLATFORM_ADMIN)
# The role of a tenant that reaches most routes.
WIDEST = (max(TENANT_ROLES, key=lambda name: len(BUILT_IN_ROLES[name])),)
BODIES: dict[str, Any] = {
    "/memories": {"title": "notes"},
    "/vaults": {"title": "notes"},
    "/memory/users": {"id": "ann", "email": "ann@example.com"},
    f"POST {MEMORY}/await-commit": {},
    f"POST {MEMORY}/entries": {"text": "a fact"},
    f"POST {MEMORY}/entries/batch": {"entries": [{"text": "a fact"}]},
    f"POST {MEMORY}/entries/{{entry_id}}/correct": {"text": "a fact", "reason": "wrong"},
    f"PUT {MEMORY}/entries/{{entry_id}}/tags": {"tags": {}},
    f"PUT {MEMORY}/fragments/{{name}}": {"content": "a document"},
    f"POST {MEMORY}/import": {"entries": [{"text": "a fact"}]},
    f"POST {MEMORY}/purge": {},
    f"POST {MEMORY}/move": {"vault_id": "none"},
    f"POST {MEMORY}/search": {"query": "a fact"},
    "POST /runs/crons": {"assistant_id": "three", "schedule": "0 2 * * *"},
    "POST /threads/{thread_id}/runs/crons": {"assistant_id": "three", "schedule": "0 2 * * *"},
    "PATCH /runs/crons/{cron_id}": {"enabled": False},
    "POST /threads/{thread_id}/commands": {"id": 1, "method": "run.start", "params": {"assistant_id": "three"}},
    "POST /threads/{thread_id}/stream/events": {"channels": ["values"]},
    "POST /api/v2/stream-tokens": {"run_id": "run_none"},
    "POST /api/v2/workers/drain": {"version": "none"},
    "POST /api/v2/workers/resume": {"version": "none"},
    "POST /v0/search": {"memoryId": "none", "query": "a fact"},
    "POST /v0/vaults/{vault_id}/memories/{memory_id}/entries": {"rawEntry": "a fact"},
    "PATCH /v0/vaults/{vault_id}/memories/{memory_id}/entries/{entry_id}/tags": {"tags": {}},
    **{
        f"POST {path}": {"assistant_id": "three"}
        for root in ("/runs", "/threads/{thread_id}/runs")
        for path in (root, f"{root}/wait", f"{root}/stream")
    },
    "POST /runs/batch": [{"assistant_id": "three"}],
    "POST /runs/cancel": {"status": "all"},
    "POST /assistants": {"graph_id": "three"},
    "PATCH /assistants/{assistant_id}": {"name": "mine"},
    "POST /assistants/{assistant_id}/latest": {"version": 1},
    "PATCH /threads/{thread_id}": {"metadata": {}},
    "POST /threads/prune": {"thread_ids": []},
    "POST /threads/{thread_id}/state": {"values": {}},
    "POST /threads/{thread_id}/state/checkpoint": {"checkpoint": {}},
    "PUT /store/items": {"namespace": ["a"], "key": "k", "value": {}},
    "DELETE /store/items": {"namespace": ["a"], "key": "k"},
    "POST /api/v2/schedules": HOURLY,
    "PUT /api/v2/schedules/{schedule_id}": HOURLY,
    "PATCH /api/v2/schedules/{schedule_id}": {"name": "Hourly"},
    "/schedules/preview": {"spec": [{"every_seconds": 3600}]},
    "/schedules/{schedule_id}/pause": {"reason": "why"},
    "/schedules/{schedule_id}/resume": {},
    "/schedules/{schedule_id}/trigger": {},
    "/schedules/{schedule_id}/backfill": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"},
    "/agents/{agent_id}/run": {"message": "hello"},
    "/chat": {"agent": "helper", "message": "hello"},
    "/run": {"input": {}},
    "/batch": {"runs": [{"task": "greet"}]},
    "/dead-letters/bulk": {"action": "retry", "run_ids": ["run_none"]},
    "/dead-letters/{run_id}/retry": {},
    "/discard": {},
    "/acknowledge": {},
    "/assign": {"to": "ann"},
    "/bulk": {"action": "cancel", "run_ids": ["run_none"]},
    "/runs/cancel": {"filter": {"target": "nothing"}},
    "/runs/retry": {"filter": {"target": "nothing"}},
    "/resume": {"response": {}},
    "/fork": {"from_step": "draft"},
    "/definitions/check": {"kind": "agents", "definition": {"id": "writer"}},
    "/definitions/{kind}/{name}": {"definition": {"id": "default"}},
    "/views/{page}/{name}": {"query": "status=failed"},
    "/inbox/answer": {"answers": [{"run_id": "run_none"}]},
    "/inbox/claim": {"run_id": "run_none", "path": "ask"},
    "/inbox/links": {"run_id": "run_none", "path": "ask", "person": "Ann", "response": {"decision": "approve"}},
    "/events/{name}": {"data": 1},
    "/api/v2/events": {"events": [{"name": "order.paid"}]},
    "/triggers/{name}/replay": {"from": "2026-01-31T12:00:00Z"},
    "/webhook-sources/{name}": {"verifier": "bearer"},
    "/runs/{run_id}": {"priority": 1},
    "/runs/{run_id}/tags": {"add": ["nightly"]},
    "/quotas/{name}": {"limit": 5},
    "/concurrency-limits/{name}": {"max_running": 5},
    "/lanes/{name}": {"enabled": True},
    "/lanes": {"name": "fresh"},
    "/kinds": {"kinds": ["greet"]},
    "/holds": {"reason": "a test"},
    "/keys": {"name": "new", "role": "viewer"},
    "/tenants": {"id": "fresh"},
    "/tenants/{tenant_id}": {"name": "Acme"},
    "/roles/{name}": {"permissions": ["runs:read"]},
    "/secrets/{name}": {"value": "a value of a secret"},
    "/secrets/rotate": {},
    "/limits/{credential}": {"in_flight": 2},
    "/openapi": {
        "spec": {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {}},
        "name_prefix": "x_",
    },
    "/sync": {"agents": [{"id": "writer"}]},
    "/bundles/export": {},
    "/bundles/import": {"bundle": {"runlane_export": True}},
    "/webhooks/endpoints": {"url": "https://example.com/hook"},
    "/webhooks/endpoints/{endpoint_id}": {"ordered": True},
    "/enable": {"held": "send"},
    "/disable": {},
    "/rotate": {},
    "/replay": {},
    "/v1/chat/completions": {"model": "helper", "messages": [{"role": "user", "content": "hello"}]},
    "/v1/responses": {"model": "helper", "input": "hello"},
    "/api/v2/stream-tokens": {"thread_id": "00000000-0000-4000-8000-000000000000"},
    "/ag-ui/agents/{agent_id}": {
        "threadId": "1",
        "runId": "1",
        "messages": [{"id": "1", "role": "user", "content": "hello"}],
    },
}


@pytest.fixture
def own_app(settings: Settings) -> App:
    """Return the shop with everything enabled that is off by default."""
    return copy_of(shop, settings.model_copy(update={"action_links": True}))


class Endpoint(NamedTuple):
    method: str
    path: str
    permission: Permission | None

    def body(self) -> Any:
        route = f"{self.method} {self.path}"
        if self.method in ("GET", "DELETE") and route not in BODIES:
            return None
        return next((body for end, body in BODIES.items() if route.endswith(end)), None)

    def url(self, run_id: str) -> str:
        filled = {
            "{run_id}": run_id,
            "{name:path}": "greet",
            "{key_id}": "key_none",
            "{tenant_id}": "acme",
            "{orchestration_id}": "article",
            "{agent_id}": "helper",
            "{session_id}": "sess_none",
            "{credential}": "openai",
            "{job_id}": "blk_none",
            "{kind}": "greet",
            "{hold_id}": "hold_none",
            "{worker_id}": "wrk_none",
            "{page}": "runs",
            "{path:path}": "ask",
            "{ref:path}": "input",
            "{schedule_id}": "hourly",
        }
        path = self.path.replace("/roles/{name}", "/roles/custom").replace("{name}", "default")
        for end in ("runs/crons", "commands"):
            path = path.replace(f"/threads/{{thread_id}}/{end}", f"/threads/{UNKNOWN_THREAD}/{end}")
        for name, value in filled.items():
            path = path.replace(name, value)
        queries = {
            "/priority": "?priority=1", "/store/items": "?key=k", "/search": "?q=x", "/v2/memory": "?confirm=default",
        }  # fmt: skip
        return path + next((query for end, query in queries.items() if path.endswith(end)), "")


def refused(endpoint: Endpoint, answer: httpx2.Response, status: int, code: str) -> None:
    """Check a refusal, which has OpenAI's shape at the OpenAI-compatible endpoints."""
    if not endpoint.path.startswith("/v1/"):
        problem_of(answer, status, code)
        return
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == {"unauthorized": "invalid_api_key"}.get(code, code)


def _needs(dependant: Dependant) -> Iterator[RequiredPermission]:
    for inner in dependant.dependencies:
        if isinstance(inner.call, RequiredPermission):
            yield inner.call
        yield from _needs(inner)


_endpoints: list[Endpoint] = []


def endpoints(application: FastAPI) -> list[Endpoint]:
    """Return every route but the public ones, with the permission it declares. All applications have the same ones."""
    if not _endpoints:
        _endpoints.extend(_endpoints_of(application))
    return _endpoints


def _endpoints_of(application: FastAPI) -> list[Endpoint]:
    found: list[Endpoint] = []
    for context in iter_route_contexts(application.routes):
        path = str(context.path)
        if path in PUBLIC:
            continue
        route = context.original_route
        if path in SOCKETS and isinstance(route, APIWebSocketRoute):
            continue
        assert isinstance(route, APIRoute), path
        needs = list(_needs(route.dependant))
        assert len(needs) == 1, f"{path} does not declare the permission that it needs"
        found += [Endpoint(method, path, needs[0].permission) for method in sorted(context.methods or ())]
    return found


async def test_every_route_declares_its_permission(idle_api: Api) -> None:
    table = endpoints(idle_api.application)
    assert len(table) > 50
    assert {endpoint.permission for endpoint in table if endpoint.path.endswith("/cancel")} == {
        Permission.RUNS_WRITE,
        Permission.WORKERS_MANAGE,
    }


# A key is found by one statement, for every route.
@pytest.mark.parametrize("settings", scaled(("sqlite",), ("sqlite", "postgres-redis")), indirect=True)
async def test_requests_without_a_valid_key_are_refused(idle_api: Api) -> None:
    async def rejected(endpoint: Endpoint, header: str) -> None:
        answer = await idle_api.client.request(
            endpoint.method, endpoint.url(run["run_id"]), json=endpoint.body(), headers={"Authorization": header}
        )
        refused(endpoint, answer, 401, "unauthorized")
        # MCP clients also get the location of the metadata.
        assert answer.headers["www-authenticate"].partition(" resource_metadata=")[0] == "Bearer"

    run = await idle_api.run("greet", wait=False)
    table = endpoints(idle_api.application)
    for endpoint in table:
        for header in ("", UNKNOWN_KEY):
            await rejected(endpoint, header)
    # The middleware authenticates requests with a body, the route those without: one of each represents all routes.
    for method in ("GET", "POST"):
        first = next(endpoint for endpoint in table if endpoint.method == method)
        for header in ("Bearer", "Bearer x", "Basic eDp5", UNKNOWN_KEY.removeprefix("Bearer ")):
            await rejected(first, header)
    for path in PUBLIC - UNKEYED:
        answer = await idle_api.client.get(path, headers={"Authorization": ""})
        assert answer.status_code == (401 if path == f"{API}/info" else 200), path


# The check is the same code for both databases. The role with all permissions reaches every route on Postgres, too.
@pytest.mark.parametrize(
    ("settings", "role"),
    [*(("sqlite", role) for role in (*BUILT_IN_ROLES, "custom")), ("postgres-redis", PLATFORM_ADMIN)],
    indirect=["settings"],
)
async def test_every_endpoint_requires_its_permission(idle_api: Api, role: str) -> None:
    database = idle_api.parts.database
    await create_tenant(database, "acme", actor="test")
    await set_role(database, "custom", ["audit:read"], actor="test")
    permissions = BUILT_IN_ROLES.get(role, frozenset({Permission.AUDIT_READ}))
    key = await idle_api.key(role)
    headers = {"Authorization": f"Bearer {key}"}
    untouched = (await idle_api.run("greet", wait=False))["run_id"]
    for endpoint in endpoints(idle_api.application):
        admitted = endpoint.permission is None or endpoint.permission in permissions
        run_id = untouched
        if admitted and RUN_ID in endpoint.path:
            run_id = (await idle_api.run("greet", wait=False))["run_id"]
            if endpoint.path.endswith(("/stream", "/wait")):
                await idle_api.post(f"/runs/{run_id}/cancel")
        if admitted and endpoint.path == f"{API}/live":
            # It does not end by itself.
            async with idle_api.client.stream("GET", endpoint.path, headers=headers) as answer:
                assert answer.status_code == 200
            continue
        answer = await idle_api.client.request(
            endpoint.method, endpoint.url(run_id), json=endpoint.body(), headers=headers
        )
        if admitted:
            assert answer.status_code not in (401, 403, 405, 422, 500), (endpoint, answer.text)
        else:
            refused(endpoint, answer, 403, "forbidden")


# The tenant is a condition of the same statements for every role.
@pytest.mark.parametrize(
    ("settings", "role"),
    [
        *(("sqlite", role) for role in TENANT_ROLES),
        *(("postgres-redis", role) for role in scaled(WIDEST, TENANT_ROLES)),
    ],
    indirect=["settings"],
)
async def test_other_tenants_runs_do_not_exist(idle_api: Api, role: str) -> None:
    await create_tenant(idle_api.parts.database, "acme", actor="test")
    key = await idle_api.key(role, tenant="acme")
    headers = {"Authorization": f"Bearer {key}"}
    permissions = BUILT_IN_ROLES[role]
    run = await idle_api.run("greet", wait=False)
    before = (await idle_api.get(f"/runs/{run['run_id']}")).json()
    seen = 0
    for endpoint in endpoints(idle_api.application):
        if RUN_ID not in endpoint.path or endpoint.permission not in permissions:
            continue
        seen += 1
        url = endpoint.url(run["run_id"])
        answer = await idle_api.client.request(endpoint.method, url, json=endpoint.body(), headers=headers)
        code = "not_found" if "/dead-letters/" in endpoint.path else "run_not_found"
        problem = problem_of(answer, 404, code)
        none = endpoint.url("run_none")
        answer = await idle_api.client.request(endpoint.method, none, json=endpoint.body(), headers=headers)
        assert problem_of(answer, 404, code)["message"] == problem["message"].replace(run["run_id"], "run_none")
    assert seen >= 16
    assert (await idle_api.get(f"/runs/{run['run_id']}")).json() == before
    assert (await idle_api.get("/runs", headers=headers)).json()["runs"] == []
    problem_of(await idle_api.get("/runs", headers=headers, params={"tenant": "default"}), 404, "not_found")


async def test_a_key_sees_and_changes_its_own_tenant_only(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    headers = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    ours = await api.run("greet", wait=False, ordering_key="k")
    theirs = (await api.post("/tasks/greet/run", {"ordering_key": "k"}, headers=headers)).json()
    assert theirs["status"] == "queued"
    listed = (await api.get("/runs", headers=headers)).json()["runs"]
    assert [(run["run_id"], run["tenant"], run["ordering_key"]) for run in listed] == [(theirs["run_id"], "acme", "k")]
    everything = (await api.get("/runs")).json()["runs"]
    assert {run["run_id"] for run in everything} == {ours["run_id"], theirs["run_id"]}
    bulk = await api.post("/runs/cancel", {"filter": {"target": "greet"}}, headers=headers)
    assert bulk.json()["run_ids"] == [theirs["run_id"]]
    assert (await api.get(f"/runs/{ours['run_id']}")).json()["status"] == "queued"


async def test_idempotency_keys_are_each_tenants_own(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}", "Idempotency-Key": "same"}
    first = await api.post("/tasks/greet/run", {}, headers={"Idempotency-Key": "same"})
    second = await api.post("/tasks/greet/run", {"priority": 3}, headers=acme)
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["run_id"] != second.json()["run_id"]


async def test_a_revoked_key_is_refused_at_once_on_every_server(settings: Settings) -> None:
    async with serving(copy_of(shop, settings)) as first, serving(copy_of(shop, settings)) as second:
        made = (await first.post("/keys", {"name": "ci", "role": "viewer"})).json()
        headers = {"Authorization": f"Bearer {made['key']}"}
        for api in (first, second):
            assert (await api.get("/me", headers=headers)).json()["key_id"] == made["id"]
        gone = await second.client.delete(f"{API}/keys/{made['id']}")
        assert gone.json()["revoked_at"] is not None
        for api in (first, second):
            problem_of(await api.get("/me", headers=headers), 401, "unauthorized")
        listed = (await first.get("/keys")).json()["keys"]
        assert made["id"] in [key["id"] for key in listed]
        assert made["key"] not in (await first.get("/keys")).text


async def test_keys_tenants_and_roles_are_administered(idle_api: Api) -> None:
    api = idle_api
    tenant = await api.post("/tenants", {"id": "acme", "max_queued": 5})
    assert (tenant.status_code, tenant.json()["max_queued"]) == (201, 5)
    problem_of(await api.post("/tenants", {"id": "acme"}), 409, "conflict")
    changed = await api.client.patch(f"{API}/tenants/acme", json={"max_queued": None, "rate_per_second": 2.5})
    assert (changed.json()["max_queued"], changed.json()["rate_per_second"]) == (None, 2.5)
    assert (await api.get("/tenants/acme")).json() == changed.json()
    problem_of(await api.get("/tenants/none"), 404, "not_found")
    role = await api.client.put(f"{API}/roles/auditor", json={"permissions": ["audit:read"]})
    assert role.json() == {"name": "auditor", "permissions": ["audit:read"], "built_in": False}
    problem_of(
        await api.client.put(f"{API}/roles/viewer", json={"permissions": ["audit:read"]}), 422, "invalid_request"
    )
    problem_of(await api.client.put(f"{API}/roles/x", json={"permissions": ["all"]}), 422, "invalid_request")
    key = await api.post("/keys", {"name": "a", "role": "auditor", "tenant": "acme", "expires_in_seconds": 60.0})
    assert (key.status_code, key.json()["tenant"]) == (201, "acme")
    assert key.json()["key"].startswith(key.json()["key_prefix"])
    problem_of(await api.client.delete(f"{API}/roles/auditor"), 409, "conflict")
    headers = {"Authorization": f"Bearer {key.json()['key']}"}
    seen = (await api.get("/audit", headers=headers)).json()["entries"]
    assert {entry["action"] for entry in seen} == {"tenant.create", "tenant.set", "key.create"}
    assert all(entry["tenant"] == "acme" for entry in seen)
    everything = (await api.get("/audit", params={"limit": 2})).json()
    assert len(everything["entries"]) == 2
    assert (await api.get("/audit", params={"cursor": everything["next_cursor"]})).json()["entries"]
    assert (await api.client.delete(f"{API}/keys/{key.json()['id']}")).status_code == 200
    assert (await api.client.delete(f"{API}/roles/auditor")).status_code == 200
    assert (await api.client.delete(f"{API}/tenants/acme")).status_code == 200
    problem_of(await api.client.delete(f"{API}/keys/key_none"), 404, "not_found")


async def test_a_key_cannot_grant_more_than_it_has(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    await set_role(api.parts.database, "clerk", ["keys:manage", "runs:read"], actor="test")
    headers = {"Authorization": f"Bearer {await api.key('clerk', tenant='acme')}"}
    for role in ("operator", "platform_admin"):
        problem_of(await api.post("/keys", {"name": "x", "role": role}, headers=headers), 403, "forbidden")
    made = await api.post("/keys", {"name": "x", "role": "clerk"}, headers=headers)
    assert made.json()["tenant"] == "acme"
    other = {"name": "x", "role": "clerk", "tenant": "default"}
    problem_of(await api.post("/keys", other, headers=headers), 404, "not_found")
    problem_of(await api.post("/tenants", {"id": "b"}, headers=headers), 403, "forbidden")
    assert [item["id"] for item in (await api.get("/tenants", headers=headers)).json()["tenants"]] == ["acme"]


async def test_limits_are_429_with_retry_after(idle_api: Api) -> None:
    api = idle_api
    database = api.parts.database
    await create_tenant(database, "acme", actor="test")
    await set_tenant(database, "acme", TenantChange(max_queued=3), actor="test")
    headers = {"Authorization": f"Bearer {await api.key('developer', tenant='acme')}"}
    answers = [await api.post("/tasks/greet/run", {}, headers=headers) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [202, 202, 202, 429]
    problem_of(answers[3], 429, "queue_limited")
    assert int(answers[3].headers["retry-after"]) >= 1
    batch = {"runs": [{"task": "greet"}] * 2}
    problem_of(await api.post("/runs/batch", batch, headers=headers), 429, "queue_limited")
    # So low that ten requests come too fast however slowly they are answered.
    await set_tenant(
        database, "acme", TenantChange(rate_per_second=0.01, unlimited=frozenset({"max_queued"})), actor="test"
    )
    codes = [(await api.post("/tasks/greet/run", {}, headers=headers)).status_code for _ in range(10)]
    assert 429 in codes


async def test_an_open_server_answers_local_programs_only(settings: Settings) -> None:
    app = copy_of(shop, settings)
    async with serving(app, access=RequestAccess.OPEN_ON_LOOPBACK, worker=WorkerOptions(), key=False) as api:
        assert (await api.run("greet"))["status"] == "completed"
        port = api.url.rsplit(":", 1)[1]
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "LOCALHOST"):
            assert (await api.get("/runs", headers={"Host": host})).status_code == 200, host
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "10.0.0.1",
        ):
            problem_of(await api.get("/runs", headers={"Host": host}), 403, "forbidden")
        own = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
        assert (await api.get("/runs", headers=own)).status_code == 200
        for origin in ("http://evil.example", "null", "http://localhost:1", f"http://evil.example:{port}"):
            answer = await api.post("/tasks/greet/run", {}, headers={"Host": f"localhost:{port}", "Origin": origin})
            problem_of(answer, 403, "forbidden")
        # A key that is sent is a key that is checked.
        problem_of(await api.get("/runs", headers={"Authorization": "Bearer sk-rl-0"}), 401, "unauthorized")


async def test_serve_does_not_start_without_a_key_where_others_can_reach_it(settings: Settings) -> None:
    with process("serve", "--host", "0.0.0.0", "--port", "0", settings=settings) as server:
        assert server.ended() == 1
    assert "No API key exists" in server.output
    with process("serve", "--port", "0", settings=settings) as server:
        entry = server.wait_for("serving")
        assert entry["access"] == "open on loopback"
    async with App(settings) as app:
        from runlane.store.access.keys import create_key

        await create_key(await app.database(), "first", "viewer", actor="test")
    with process("serve", "--host", "0.0.0.0", "--port", "0", settings=settings) as server:
        assert server.wait_for("serving")["access"] == "keys"
