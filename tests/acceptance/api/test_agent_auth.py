"""Auth modules: users, handlers and filters of a LangGraph project decide about the agent server, failing closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.errors import APIStatusError, ConflictError, NotFoundError
from starlette.requests import Request

from runlane.api.agent_auth.registry import ROUTES
from runlane.api.agent_auth.values import values_of, written_back
from runlane.api.auth import RequestAccess
from runlane.api.server import build_api
from runlane.app import App
from runlane.domain.access import Permission
from runlane.errors import ConfigurationError
from runlane.store.access.roles import set_role
from runlane.store.threads.thread_search import ThreadFilter, count_threads
from tests.acceptance.api.agent_client import host
from tests.acceptance.api.auth_modules import OPEN, with_auth
from tests.acceptance.api.serving import Api, serving
from tests.acceptance.api.test_access import endpoints
from tests.harness import settings_for

_ROOTS = ("/assistants", "/threads", "/runs", "/store")


@pytest.fixture
async def guarded(own_app: App, tmp_path: Path) -> AsyncGenerator[Api]:
    async with serving(with_auth(own_app, tmp_path)) as api:
        await host(api)
        yield api


@asynccontextmanager
async def user(api: Api, name: str, **headers: str) -> AsyncGenerator[Any]:
    """Return the unmodified client of a user."""
    client = get_client(url=api.url, api_key=None, headers={"Authorization": f"Bearer {name}", **headers})
    try:
        yield client
    finally:
        await client.aclose()


def test_every_route_of_the_agent_server_is_in_the_registry(sqlite_url: str) -> None:
    table = [item for item in endpoints(build_api(App(settings_for(sqlite_url)))) if item.path.startswith(_ROOTS)]
    assert len(table) > 40
    assert {(item.method, item.path) for item in table} == set(ROUTES)


async def test_users_see_what_they_own(guarded: Api) -> None:
    async with user(guarded, "alice") as alice, user(guarded, "bob") as bob:
        hers = (await alice.threads.create(metadata={"topic": "x"}))["thread_id"]
        his = (await bob.threads.create())["thread_id"]
        assert (await alice.threads.get(hers))["metadata"] == {"topic": "x", "owner": "alice"}
        assert [item["thread_id"] for item in await bob.threads.search()] == [his]
        assert (await alice.threads.count(), await bob.threads.count()) == (1, 1)
        for call in (
            bob.threads.get(hers),
            bob.threads.update(hers, metadata={"owner": "bob"}),
            bob.threads.get_state(hers),
            bob.threads.get_history(hers),
            bob.threads.copy(hers),
            bob.runs.list(hers),
            bob.runs.create(hers, "three"),
            bob.threads.update_state(hers, {"a": 1}),
        ):
            with pytest.raises(NotFoundError):
                await call
        with pytest.raises(ConflictError):
            await bob.threads.create(thread_id=hers, if_exists="do_nothing")
        # A search for an owner finds nothing more.
        assert await bob.threads.search(metadata={"owner": "alice"}) == []
        await alice.threads.update(hers, metadata={"shared_with": ["carol", "bob"]})
        await bob.threads.update(his, metadata={"shared_with": ["carol"]})
        assert (await bob.threads.get(hers))["thread_id"] == hers
        assert {item["thread_id"] for item in await bob.threads.search()} == {his, hers}
        # A handler may narrow the search itself.
        async with user(guarded, "carol") as carol:
            assert [item["thread_id"] for item in await carol.threads.search()] == [hers]
            assert await carol.threads.count() == 1


async def test_handlers_may_refuse_and_are_chosen_by_how_specific_they_are(guarded: Api) -> None:
    async with user(guarded, "alice") as alice, user(guarded, "bob") as bob:
        his = (await bob.threads.create())["thread_id"]
        with pytest.raises(APIStatusError, match=r"Only alice deletes\.") as refused:
            await bob.threads.delete(his)
        assert refused.value.status_code == 403
        with pytest.raises(NotFoundError):
            await alice.threads.delete(his)
        hers = (await alice.threads.create())["thread_id"]
        assert (await alice.threads.prune([his, hers]))["pruned_count"] == 1
        assert (await bob.threads.get(his))["thread_id"] == his


async def test_assistants_are_filtered_and_defaults_serve_every_user(guarded: Api) -> None:
    async with user(guarded, "alice") as alice, user(guarded, "bob") as bob:
        hers = (await alice.assistants.create("three", name="hers"))["assistant_id"]
        assert [item["name"] for item in await bob.assistants.search()] == ["three"]
        assert {item["name"] for item in await alice.assistants.search()} == {"hers", "three"}
        for call in (bob.assistants.get(hers), bob.assistants.update(hers, name="his"), bob.assistants.delete(hers)):
            with pytest.raises(NotFoundError):
                await call
        thread = (await bob.threads.create())["thread_id"]
        with pytest.raises(NotFoundError):
            await bob.runs.create(thread, hers)
        run = await bob.runs.create(
            thread, "three", config={"configurable": {"langgraph_auth_user": {"identity": "x"}}}
        )
        configurable = run["kwargs"]["config"]["configurable"]
        assert configurable["langgraph_auth_user_id"] == "bob"
        assert configurable["langgraph_auth_user"] == {
            "identity": "bob", "display_name": "Bob", "is_authenticated": True, "permissions": ["use"],
        }  # fmt: skip
        assert run["metadata"]["owner"] == "bob"
        # A run without a thread gets one of its user.
        alone = await bob.runs.create(None, "three", on_completion="keep")
        assert (await bob.threads.get(alone["thread_id"]))["metadata"]["owner"] == "bob"
        with pytest.raises(NotFoundError):
            await alice.runs.get(alone["thread_id"], alone["run_id"])
        batch = await bob.runs.create_batch([{"assistant_id": "three"}, {"assistant_id": "three"}])
        assert {item["metadata"]["owner"] for item in batch} == {"bob"}
        # The runs of other users are not cancelled.
        with pytest.raises(NotFoundError):
            await alice.runs.cancel_many(status="all")
        await bob.runs.cancel_many(status="all")
        assert (await bob.runs.get(thread, run["run_id"]))["status"] == "interrupted"


async def test_handlers_scope_the_namespaces_of_items(guarded: Api) -> None:
    async with user(guarded, "alice") as alice, user(guarded, "bob") as bob:
        await alice.store.put_item(("notes",), "k", {"text": "hers"})
        assert (await alice.store.get_item(("notes",), "k"))["namespace"] == ["alice", "notes"]
        assert await bob.store.get_item(("notes",), "k") is None
        assert (await bob.store.search_items(()))["items"] == []
        assert len((await alice.store.search_items(("notes",)))["items"]) == 1
        assert (await bob.store.list_namespaces())["namespaces"] == []
        with pytest.raises(APIStatusError, match=r"no handler for store\.delete") as refused:
            await alice.store.delete_item(("notes",), "k")
        assert refused.value.status_code == 403


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("guest", 401, "Sign in first."),
        ("broken", 401, "The auth module refused the request."),
        ("nameless", 401, "The auth module refused the request."),
        ("raises", 403, "The auth module refused the request."),
        ("odd", 403, "The auth module refused the request."),
        ("regex", 403, "The auth module refused the request."),
    ],
)
async def test_what_fails_is_refused(guarded: Api, name: str, status: int, text: str) -> None:
    headers = {"Authorization": f"Bearer {name}"}
    async with httpx2.AsyncClient(base_url=guarded.url, headers=headers, trust_env=False) as plain:
        for method, path in (("POST", "/threads"), ("POST", "/threads/search"), ("GET", "/threads/x/runs")):
            answer = await plain.request(method, path, content=b"{}" if method == "POST" else None)
            assert (answer.status_code, answer.json()["message"]) == (status, text), path
            assert answer.json()["detail"] == text
        if name == "guest":
            assert answer.headers["x-sign-in"] == "here"
    assert await count_threads(guarded.parts.database, "default", ThreadFilter()) == 0


async def test_keys_of_runlane_stay_for_the_other_paths(guarded: Api) -> None:
    assert (await guarded.get("/runs")).status_code == 200
    assert (await guarded.client.post("/threads/search", json={})).status_code == 200  # the module takes any bearer
    async with user(guarded, "alice") as alice:
        assert (await alice.http.client.get("/ok")).status_code == 200
        assert (await alice.http.client.get("/api/v2/runs")).status_code == 401


async def test_sockets_of_threads_are_refused(guarded: Api) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "websocket",
        "path": "/threads/x/stream/events",
        "headers": [],
        "query_string": b"",
        "root_path": "",
    }
    await guarded.application(scope, receive, send)
    assert [(message["type"], message["code"]) for message in sent] == [("websocket.close", 4403)]


def test_commands_start_runs_of_their_user() -> None:
    access = ROUTES["POST", "/threads/{thread_id}/commands"][0]
    body = {"id": 1, "method": "run.start", "params": {"assistant_id": "three", "input": {"a": 1}}}
    request = Request({"type": "http", "method": "POST", "path_params": {"thread_id": "x"}, "headers": []})
    (value,) = values_of(access, request, body)
    assert (value["thread_id"], value["assistant_id"], value["kwargs"]) == ("x", "three", {"input": {"a": 1}})
    value["metadata"]["owner"] = "alice"
    changed = written_back(access, request, body, [value])
    assert changed["params"] == {"assistant_id": "three", "input": {"a": 1}, "metadata": {"owner": "alice"}}
    other = {"id": 1, "method": "input.respond", "params": {"interrupt_id": "i", "response": "yes"}}
    assert written_back(access, request, other, values_of(access, request, other)) == other


async def test_studio_needs_a_key_of_runlane(own_app: App, tmp_path: Path) -> None:
    app = with_auth(own_app, tmp_path, STUDIO)
    async with serving(app) as api:
        studio = {"x-auth-scheme": "langsmith"}
        assert (await api.client.post("/threads/search", json={}, headers=studio)).status_code == 200
        async with httpx2.AsyncClient(base_url=api.url, headers=studio, trust_env=False) as anonymous:
            assert (await anonymous.post("/threads/search", json={})).status_code == 401
        viewer = {**studio, "Authorization": f"Bearer {await api.key('viewer')}"}
        assert (await api.client.post("/threads/search", json={}, headers=viewer)).status_code == 403
        plain = await api.client.post("/threads/search", json={}, headers={"x-user": "alice"})
        assert plain.status_code == 403


async def test_studio_gives_a_key_no_permission_that_it_does_not_have(own_app: App, tmp_path: Path) -> None:
    async with serving(with_auth(own_app, tmp_path, STUDIO)) as api:
        await host(api)
        await set_role(api.parts.database, "chat", {Permission.RUNS_READ, Permission.RUNS_WRITE}, actor="test")
        chat = {"x-auth-scheme": "langsmith", "Authorization": f"Bearer {await api.key('chat')}"}
        assert (await api.client.post("/threads", json={}, headers=chat)).status_code == 200
        cron = {"assistant_id": "three", "schedule": "0 3 * * *"}
        refused = await api.client.post("/runs/crons", json=cron, headers=chat)
        assert (refused.status_code, "schedules:write" in refused.text) == (403, True)


async def test_studio_is_a_user_like_others_if_its_access_is_disabled(own_app: App, tmp_path: Path) -> None:
    async with serving(with_auth(own_app, tmp_path, OPEN, studio=False)) as api:
        answer = await api.client.post("/threads", json={}, headers={"x-auth-scheme": "langsmith"})
        assert answer.status_code == 401


async def test_an_open_server_has_the_rules_of_its_module(own_app: App, tmp_path: Path) -> None:
    async with serving(with_auth(own_app, tmp_path), access=RequestAccess.OPEN_ON_LOOPBACK, key=False) as api:
        assert (await api.client.post("/threads", json={})).status_code == 401
        studio = {"x-auth-scheme": "langsmith"}
        assert (await api.client.post("/threads", json={}, headers=studio)).status_code == 200


async def test_a_module_without_rules_authenticates_alone(own_app: App, tmp_path: Path) -> None:
    async with serving(with_auth(own_app, tmp_path, OPEN), key=False) as api:
        assert (await api.client.post("/threads", json={})).status_code == 401
        made = await api.client.post("/threads", json={}, headers={"x-user": "alice"})
        other = await api.client.get(f"/threads/{made.json()['thread_id']}", headers={"x-user": "bob"})
        assert (made.status_code, other.status_code) == (200, 200)


STUDIO = """
from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(headers):
    return headers[b"x-user"].decode()


@auth.on
async def only_studio(ctx, value):
    return isinstance(ctx.user, Auth.types.StudioUser)
"""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import missing_package\nauth = 1\n", "missing_package"),
        ("auth = object()\n", "is a object"),
        ("from langgraph_sdk import Auth\nauth = Auth()\n", "@auth.authenticate"),
        ("raise RuntimeError('no directory')\n", "no directory"),
        (OPEN.replace("(headers)", "(headers, cookies)"), "takes cookies"),
        (OPEN.replace("(headers)", "(headers, body)"), "takes body"),
        ("x = 1\n", "auth does not exist"),
    ],
)
async def test_a_broken_module_stops_the_start(own_app: App, tmp_path: Path, source: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        async with serving(with_auth(own_app, tmp_path, source)):
            pass
