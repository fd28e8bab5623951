"""Access to the agent server: every route needs a permission, and pages of other origins need a setting."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from runlane.api.auth import RequestAccess
from runlane.api.server import build_api
from runlane.app import App
from runlane.domain.access import Permission
from tests.acceptance.api.agent_client import host, langgraph_client
from tests.acceptance.api.serving import Api, serving
from tests.acceptance.api.test_access import endpoints
from tests.harness import settings_for

_ROOTS = ("/assistants", "/threads", "/runs", "/store")
_READS = {"search", "count", "versions", "history", "checkpoint", "namespaces"}


def test_every_route_of_the_agent_server_needs_a_permission(sqlite_url: str) -> None:
    table = [item for item in endpoints(build_api(App(settings_for(sqlite_url)))) if item.path.startswith(_ROOTS)]
    assert len(table) > 40
    for item in table:
        last = item.path.rsplit("/", 1)[-1]
        reads = item.method == "GET" or last in _READS or item.path.endswith("/stream/events")
        # A cron is a schedule.
        changes = Permission.SCHEDULES_WRITE if "/crons" in item.path else Permission.RUNS_WRITE
        assert item.permission is (Permission.RUNS_READ if reads else changes), item


async def test_a_viewer_reads_and_does_not_write(idle_api: Api) -> None:
    await host(idle_api)
    viewer = await idle_api.key("viewer")
    thread = (await idle_api.client.post("/threads", json={})).json()["thread_id"]
    sent = {"x-api-key": viewer}
    async with langgraph_client(idle_api, viewer) as client:
        assert (await client.threads.get(thread))["thread_id"] == thread
        assert len(await client.assistants.search()) == 1
    requests: list[tuple[str, str, Any]] = [
        ("POST", "/threads", {}),
        ("POST", "/assistants", {"graph_id": "three"}),
        ("POST", f"/threads/{thread}/runs", {"assistant_id": "three"}),
        ("POST", "/runs/stream", {"assistant_id": "three"}),
        ("PUT", "/store/items", {"namespace": ["a"], "key": "k", "value": {}}),
        ("DELETE", f"/threads/{thread}", None),
    ]
    async with httpx2.AsyncClient(base_url=idle_api.url, headers=sent, trust_env=False) as plain:
        for method, path, body in requests:
            answer = await plain.request(method, path, json=body)
            assert answer.status_code == 403, (path, answer.text)


@pytest.mark.parametrize("sent", [{}, {"x-api-key": "lsv2_other"}, {"authorization": "Bearer nothing"}])
async def test_no_key_and_wrong_keys_are_refused(idle_api: Api, sent: dict[str, str]) -> None:
    async with httpx2.AsyncClient(base_url=idle_api.url, headers=sent, trust_env=False) as anonymous:
        for path in ("/threads/search", "/assistants/search", "/runs/wait", "/store/namespaces"):
            answer = await anonymous.post(path, json={})
            assert answer.status_code == 401, path
            assert answer.json()["detail"] == answer.json()["message"]


async def test_an_open_server_ignores_keys_of_other_services(own_app: App) -> None:
    async with serving(own_app, access=RequestAccess.OPEN_ON_LOOPBACK, key=False) as api:
        async with langgraph_client(api, "lsv2_other") as client:
            assert await client.threads.search() == []
        wrong = {"x-api-key": "sk-rl-" + "0" * 64}
        assert (await api.client.post("/threads/search", json={}, headers=wrong)).status_code == 401


async def test_pages_of_allowed_origins_may_read(sqlite_url: str) -> None:
    app = App(settings_for(sqlite_url, api_cors_origins="https://chat.example.com, http://localhost:3000"))
    asked = {"origin": "https://chat.example.com", "access-control-request-method": "POST"}
    async with serving(app) as api:
        preflight = await api.client.options(
            "/threads", headers={**asked, "access-control-request-headers": "x-api-key,content-type"}
        )
        assert (preflight.status_code, preflight.headers["access-control-allow-headers"]) == (
            204,
            "x-api-key,content-type",
        )
        answer = await api.client.post("/threads", json={}, headers={"origin": "https://chat.example.com"})
        assert answer.headers["access-control-allow-origin"] == "https://chat.example.com"
        assert "Content-Location" in answer.headers["access-control-expose-headers"]
        foreign: dict[str, Any] = {**asked, "origin": "https://evil.example.com"}
        assert (await api.client.options("/threads", headers=foreign)).status_code == 400
        other = await api.client.post("/threads", json={}, headers={"origin": "https://evil.example.com"})
        assert "access-control-allow-origin" not in other.headers
        # A stream sends its response after the middlewares have returned.
        path = f"/threads/{answer.json()['thread_id']}/stream"
        async with api.client.stream("GET", path, headers={"origin": "http://localhost:3000"}) as stream:
            assert stream.headers["access-control-allow-origin"] == "http://localhost:3000"
