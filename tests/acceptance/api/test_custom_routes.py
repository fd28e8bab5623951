"""Routes of the project beside the API: served with their lifespan, protected on request, conflicts reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from runlane.api.custom_routes import load_custom_routes
from runlane.api.route_table import RouteTable
from runlane.app import App
from runlane.domain.graph_registry import AgentServerOptions, HttpOptions
from runlane.errors import ConfigurationError
from tests.acceptance.api.auth_modules import with_auth, with_routes
from tests.acceptance.api.serving import Api, serving

ROUTES = """
from contextlib import asynccontextmanager
from fastapi import FastAPI, Request

opened = []


@asynccontextmanager
async def lifespan(app):
    opened.append("open")
    yield {"pool": "a pool"}
    opened.append("closed")


app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)


@app.get("/shop/{item}")
async def item(request: Request, item: str):
    user = request.scope.get("user")
    return {"item": item, "pool": request.state.pool, "opened": opened, "user": user and user.identity}


@app.post("/shop")
async def buy(request: Request):
    return {"body": (await request.body()).decode()}


@app.get("/threads/{thread_id}")
async def hidden(thread_id: str):
    return {"hidden": True}


@app.get("/fails")
async def fails():
    raise ValueError("secret cause")
"""


def _anonymous(api: Api, **headers: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=api.url, headers=headers, trust_env=False)


async def test_routes_are_served_with_their_lifespan(own_app: App, tmp_path: Path) -> None:
    app = with_routes(own_app, tmp_path, ROUTES)
    async with serving(app) as api, _anonymous(api) as anonymous:
        answer = await anonymous.get("/shop/tea")
        assert answer.json() == {"item": "tea", "pool": "a pool", "opened": ["open"], "user": None}
        assert (await anonymous.post("/shop", content=b"two")).json() == {"body": "two"}
        assert (await anonymous.get("/threads/x")).status_code == 401
        assert (await anonymous.post("/threads", json={})).status_code == 401
        assert (await anonymous.post("/nothing", json={})).status_code == 401
        assert (await api.client.get("/nothing")).status_code == 404
        assert (await api.client.put("/threads", json={})).status_code == 405
        failed = await anonymous.get("/fails")
        assert failed.status_code == 500
        assert "secret cause" not in failed.text
        custom = load_custom_routes(app.agent_server.http)
        assert custom is not None
        assert custom.conflicts(cast("RouteTable", api.application.router.middleware_stack)) == [
            ("GET", "/threads/{thread_id}")
        ]


async def test_routes_may_need_a_key(own_app: App, tmp_path: Path) -> None:
    async with serving(with_routes(own_app, tmp_path, ROUTES, authenticates=True)) as api, _anonymous(api) as anonymous:
        assert (await anonymous.get("/shop/tea")).status_code == 401
        assert (await anonymous.post("/shop", content=b"two")).status_code == 401
        assert (await api.client.get("/shop/tea")).json()["item"] == "tea"


async def test_routes_may_need_a_user_of_the_auth_module(own_app: App, tmp_path: Path) -> None:
    app = with_routes(with_auth(own_app, tmp_path), tmp_path, ROUTES, authenticates=True)
    async with serving(app) as api, _anonymous(api, Authorization="Bearer alice") as alice:
        assert (await alice.get("/shop/tea")).json()["user"] == "alice"
        refused = await alice.get("/shop/tea", headers={"Authorization": "Bearer guest"})
        assert (refused.status_code, refused.json()["message"]) == (401, "Sign in first.")


async def test_origins_of_the_file_may_call_every_path(own_app: App, tmp_path: Path) -> None:
    app = with_routes(own_app, tmp_path, ROUTES)
    given = app.agent_server.http
    http = HttpOptions(given.app, given.folder, origins=("https://Chat.example.com",), exposed_headers=("X-Mine",))
    app.agent_server = AgentServerOptions(http=http)
    sent = {"origin": "https://chat.example.com"}
    async with serving(app) as api:
        for path in ("/shop/tea", "/threads/x", "/api/v2/runs"):
            answer = await api.client.get(path, headers=sent)
            assert answer.headers["access-control-allow-origin"] == "https://chat.example.com", path
            exposed = answer.headers["access-control-expose-headers"]
            assert {"Location", "Content-Location", "X-Mine"} <= set(exposed.split(", "))


async def test_studio_may_send_json_as_text(idle_api: Api) -> None:
    body = b'{"metadata": {"from": "studio"}}'
    made = await idle_api.client.post("/threads", content=body, headers={"content-type": "text/plain;charset=UTF-8"})
    assert made.json()["metadata"] == {"from": "studio"}
    broken = await idle_api.client.post("/threads", content=b"{", headers={"content-type": "text/plain"})
    assert broken.status_code == 400


@pytest.mark.parametrize(
    ("source", "reason"),
    [("app = 1\n", "names a int"), ("raise RuntimeError('no shop')\n", "no shop"), ("x: int = 1\n", "does not exist")],
)
def test_routes_that_do_not_load_stop_the_start(own_app: App, tmp_path: Path, source: str, reason: str) -> None:
    from runlane.api.server import build_api

    app: Any = with_routes(own_app, tmp_path, source)
    with pytest.raises(ConfigurationError, match=reason):
        build_api(app)
