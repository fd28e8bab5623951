"""The MCP server over HTTP: the SDK's own client lists, calls, follows, is cut off and returns."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from runlane import Context
from runlane.api.mcp import memory_tools
from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.domain.access import Permission
from runlane.store.access.keys import create_key
from runlane.store.access.roles import set_role
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.mcp_clients import HANDSHAKE, MODERN, Notes, mcp_client, tool_names, value_of
from tests.acceptance.api.serving import Api, serving
from tests.harness import eventually

MEMORY_READING = {
    "list_entries",
    "get_entry",
    "get_context",
    "await_consistency",
    "search_memories",
    "get_memory",
    "list_vaults",
    "list_memories",
    "get_default_prompts",
}
READING = {
    "follow_run",
    "get_run",
    "list_runs",
    "read_logs",
    "read_events",
    "list_questions",
    "list_dead_letters",
    "get_dead_letter",
    "list_definitions",
    "get_definition",
    *MEMORY_READING,
}
MEMORY_CHANGING = {
    "add_entry",
    "correct_entry",
    "delete_entry",
    "put_context",
    "create_memory_in_vault",
    "create_vault",
}
CHANGING = {"start_run", "chat", "answer_run", "cancel_run", "retry_run"} | MEMORY_CHANGING
EXPOSED = {"greet_guest", "helper", "welcome.desk".replace(".", "_")}
HELPER: dict[str, Any] = {
    "id": "helper",
    "name": "Helper",
    "description": "Answers questions.",
    "model": "scripted",
    "expose": "mcp",
    "answers": [{"say": "Hello there."}],
}
HIDDEN: dict[str, Any] = {"id": "hidden", "model": "scripted", "answers": [{"say": 'not "expose":"mcp"'}]}
DESK: dict[str, Any] = {
    "id": "welcome.desk",
    "description": "Greets and asks.",
    "expose": "mcp",
    "state_schema": {"tone": {"type": "string", "default": "warm", "description": "How to greet."}},
    "steps": [
        {"id": "ask", "type": "human", "human_prompt": "Let them in?", "next_step_id": "done"},
        {"id": "done", "type": "end"},
    ],
}


@pytest.fixture
def own_app(own_app: App) -> App:
    @own_app.task("greet_guest", expose="mcp")
    async def greet_guest(ctx: Context, name: str, times: int = 1) -> dict[str, Any]:
        """Greet a guest by name."""
        await ctx.log(f"greeting {name}")
        await ctx.progress(0.5, "halfway")
        return {"greeting": f"Hello {name}. " * times}

    return own_app


async def bring(api: Api, tenant: str = "default") -> None:
    loaded = parse_bodies({"agents": [HELPER, HIDDEN], "orchestrations": [DESK]})
    await sync_definitions(api.parts.database, tenant, loaded, actor="test")


@pytest.mark.parametrize("mode", [MODERN, HANDSHAKE])
async def test_a_client_lists_and_calls(api: Api, mode: str) -> None:
    await bring(api)
    async with mcp_client(api.url, await api.key("operator"), mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == READING | CHANGING | EXPOSED
        hints = tools["cancel_run"].annotations
        assert hints is not None
        assert (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint) == (False, True, True)
        assert all((tools[name].annotations or hints).read_only_hint for name in READING)
        greet = tools["greet_guest"]
        assert (greet.title, greet.input_schema["required"]) == ("greet_guest", ["name"])
        assert greet.input_schema["properties"]["times"] == {"type": "integer", "default": 1}
        assert tools["welcome_desk"].input_schema["properties"]["input"]["properties"]["tone"] == {
            "type": "string",
            "default": "warm",
            "description": "How to greet.",
        }
        notes = Notes()
        called = await client.call_tool("greet_guest", {"name": "Ada"}, progress_callback=notes)
        assert not called.is_error
        assert value_of(called)["result"] == {"greeting": "Hello Ada. "}
        assert notes.run_id == value_of(called)["run_id"]
        assert notes.numbers == sorted(set(notes.numbers))
        answered = await client.call_tool("helper", {"message": "hi"})
        assert answered.content == [types.TextContent(text="Hello there.")]
        started = value_of(await client.call_tool("start_run", {"kind": "task", "name": "greet", "wait_seconds": 60}))
        assert (started["status"], started["result"]) == ("completed", {"said": "hello"})
        run = value_of(await client.call_tool("get_run", {"run_id": started["run_id"]}))
        assert (run["target"], run["result"]) == ("greet", {"said": "hello"})
        logs = value_of(await client.call_tool("read_logs", {"run_id": run["run_id"], "event": "log"}))
        assert [line["message"] for line in logs["logs"]] == ["line 1", "line 2", "line 3"]
        events = value_of(await client.call_tool("read_events", {"run_id": run["run_id"], "limit": 2}))
        assert [event["seq"] for event in events["events"]] == [1, 2]
        found = value_of(await client.call_tool("list_runs", {"target": "greet", "status": ["completed"]}))
        assert [item["run_id"] for item in found["runs"]] == [run["run_id"]]


async def test_arguments_are_checked_before_a_run_is_started(api: Api) -> None:
    await bring(api)
    async with mcp_client(api.url, await api.key("operator")) as client:
        for name, arguments, problem in (
            ("greet_guest", {}, "name"),
            ("greet_guest", {"name": "Ada", "tims": 2}, "tims"),
            ("helper", {"message": 7}, "message"),
            ("start_run", {"kind": "task", "name": "greet", "wait_seconds": -1}, "wait_seconds"),
            ("start_run", {"kind": "task", "name": "gret"}, "greet"),
            ("start_run", {"kind": "task", "name": "greet", "message": "hi"}, "message"),
        ):
            refused = await client.call_tool(name, arguments)
            assert refused.is_error, (name, arguments)
            assert problem in value_of(refused)["message"]
        assert value_of(await client.call_tool("list_runs", {}))["runs"] == []


async def test_a_client_that_was_cut_off_finds_its_run(api: Api, tmp_path: Path) -> None:
    relief = tmp_path / "relief"
    key = await api.key("operator")
    notes = Notes()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(mcp_client(api.url, key))
        arguments = {"kind": "task", "name": "guard", "input": {"until": str(relief)}, "wait_seconds": 600}
        calling = asyncio.create_task(client.call_tool("start_run", arguments, progress_callback=notes))
        await eventually(lambda: len(notes.numbers) > 3, "progress of the run")
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    run_id = notes.run_id
    assert run_id is not None
    await eventually(lambda: api.parts.tail.followers == 0, "the end of the call at the server")
    async with mcp_client(api.url, key) as client:
        assert value_of(await client.call_tool("get_run", {"run_id": run_id}))["status"] == "running"
        soon = value_of(await client.call_tool("follow_run", {"run_id": run_id, "wait_seconds": 0}))
        assert "follow_run" in soon["hint"]
        again = Notes()
        following = asyncio.create_task(
            client.call_tool(
                "follow_run",
                {"run_id": run_id, "after": soon["last_seq"], "wait_seconds": 600},
                progress_callback=again,
            )
        )
        await eventually(lambda: len(again.numbers) > 2, "progress after the reconnect")
        relief.touch()
        ended = value_of(await following)
        assert (ended["status"], ended["result"]) == ("completed", "relieved")


async def test_a_repeated_call_with_the_same_key_starts_nothing_new(api: Api) -> None:
    async with mcp_client(api.url, await api.key("operator")) as client:
        arguments = {"name": "Ada", "idempotency_key": "guest-1"}
        both = await asyncio.gather(*(client.call_tool("greet_guest", arguments) for _ in range(2)))
        again = await client.call_tool("greet_guest", arguments)
        values = [value_of(result) for result in (*both, again)]
        assert len({value["run_id"] for value in values}) == 1
        assert [value["result"] for value in values] == [{"greeting": "Hello Ada. "}] * 3
        assert value_of(again)["replayed"] is True
        meta: Any = {"runlane/idempotencyKey": "guest-2"}
        marked = [value_of(await client.call_tool("greet_guest", {"name": "Bob"}, meta=meta)) for _ in range(2)]
        assert marked[0]["run_id"] == marked[1]["run_id"]
        other = await client.call_tool("greet_guest", {"name": "Eve", "idempotency_key": "guest-1"})
        assert other.is_error
        long: list[Any] = [{"runlane/idempotencyKey": f"{'guest-' * 40}{number}"} for number in range(2)]
        apart = [value_of(await client.call_tool("greet_guest", {"name": "Cy"}, meta=key)) for key in long]
        assert apart[0]["run_id"] != apart[1]["run_id"]
        assert len(value_of(await client.call_tool("list_runs", {}))["runs"]) == 4


async def test_a_question_is_answered_and_runs_are_cancelled_and_retried(api: Api) -> None:
    await bring(api)
    async with mcp_client(api.url, await api.key("operator")) as client:
        asked = value_of(await client.call_tool("welcome_desk", {"message": "knock"}))
        assert (asked["status"], asked["questions"][0]["prompt"]) == ("paused", "Let them in?")
        listed = value_of(await client.call_tool("list_questions", {}))
        assert [question["run_id"] for question in listed["questions"]] == [asked["run_id"]]
        await client.call_tool("answer_run", {"run_id": asked["run_id"], "response": "yes"})
        ended = value_of(await client.call_tool("follow_run", {"run_id": asked["run_id"]}))
        assert ended["status"] == "completed"
        twice = await client.call_tool("answer_run", {"run_id": asked["run_id"], "response": "no"})
        assert twice.is_error
        waiting = value_of(await client.call_tool("start_run", {"kind": "task", "name": "wait"}))
        cancelled = value_of(await client.call_tool("cancel_run", {"run_id": waiting["run_id"]}))
        assert cancelled["status"] in ("cancelled", "cancellation_requested")
        gone = await client.call_tool("follow_run", {"run_id": waiting["run_id"]})
        assert (gone.is_error, value_of(gone)["status"]) == (True, "cancelled")
        failed = await client.call_tool("start_run", {"kind": "task", "name": "fail", "wait_seconds": 60})
        assert (failed.is_error, value_of(failed)["error"]["message"]) == (True, "it always does")
        letters = value_of(await client.call_tool("list_dead_letters", {}))["dead_letters"]
        assert [letter["run_id"] for letter in letters] == [value_of(failed)["run_id"]]
        letter = value_of(await client.call_tool("get_dead_letter", {"run_id": value_of(failed)["run_id"]}))
        assert letter["message"] == "it always does"
        retried = value_of(await client.call_tool("retry_run", {"run_id": value_of(failed)["run_id"]}))
        assert retried["status"] == "queued"


async def test_a_key_sees_only_what_it_may_use(api: Api) -> None:
    await bring(api)
    database = api.parts.database
    await set_role(database, "nothing", [Permission.AUDIT_READ.value], actor="test")
    await set_role(database, "watcher", [Permission.WORKERS_VIEW.value], actor="test")
    async with mcp_client(api.url, await api.key("operator")) as client:
        run_id = value_of(await client.call_tool("greet_guest", {"name": "Ada"}))["run_id"]
    async with mcp_client(api.url, await api.key("viewer")) as client:
        assert await tool_names(client) == READING
        for name in (*CHANGING, *EXPOSED):
            with pytest.raises(MCPError, match="Unknown tool"):
                await client.call_tool(name, {"run_id": run_id, "name": "Ada", "message": "hi"})
        assert value_of(await client.call_tool("get_run", {"run_id": run_id}))["status"] == "completed"
    async with mcp_client(api.url, await api.key("watcher")) as client:
        assert await tool_names(client) == set()
        seen = {resource.uri for resource in (await client.list_resources()).resources}
        assert seen == {"workers/status", "runlane://workers/status", "runlane://lanes"}
        with pytest.raises(MCPError, match="No resource"):
            await client.read_resource(f"runlane://runs/{run_id}")
    async with mcp_client(api.url, await api.key("nothing")) as client:
        assert await tool_names(client) == set()
        assert (await client.list_resources()).resources == []
        assert (await client.list_resource_templates()).resource_templates == []
        with pytest.raises(MCPError, match="No resource"):
            await client.read_resource("workers/status")


async def test_tenants_do_not_see_each_other(api: Api) -> None:
    await bring(api)
    await create_tenant(api.parts.database, "acme", actor="test")
    key = (await create_key(api.parts.database, "theirs", "operator", actor="test", tenant="acme"))[1]
    async with mcp_client(api.url, await api.key("operator")) as client:
        run_id = value_of(await client.call_tool("greet_guest", {"name": "Ada"}))["run_id"]
    async with mcp_client(api.url, key) as client:
        # Tasks belong to the app, definitions to their tenant.
        assert await tool_names(client) == READING | CHANGING | {"greet_guest"}
        for name in ("get_run", "follow_run", "cancel_run", "retry_run", "read_logs", "read_events"):
            refused = await client.call_tool(name, {"run_id": run_id})
            assert (refused.is_error, value_of(refused)["code"]) == (True, "run_not_found"), name
        with pytest.raises(MCPError, match="does not exist"):
            await client.read_resource(f"runlane://runs/{run_id}")
        assert value_of(await client.call_tool("list_runs", {}))["runs"] == []


async def test_resources_are_read_by_their_uri(api: Api) -> None:
    await bring(api)
    async with mcp_client(api.url, await api.key()) as client:
        run_id = value_of(await client.call_tool("greet_guest", {"name": "Ada"}))["run_id"]
        for uri in ("workers/status", "runlane://workers/status"):
            parts = (await client.read_resource(uri)).contents
            assert [part.mime_type for part in parts] == ["application/json", "text/plain"]
            status = json.loads(text_of(parts[0]))
            assert {lane["name"] for lane in status["lanes"]} >= {"default", "slow"}
            assert "slots in use" in text_of(parts[1])
        for uri, key in (
            ("runlane://lanes", "lanes"),
            ("runlane://lanes/default", "max_slots"),
            ("runlane://runs", "runs"),
            (f"runlane://runs/{run_id}", "result"),
            (f"runlane://runs/{run_id}/events", "events"),
            ("runlane://definitions", "definitions"),
            ("runlane://definitions/agent/helper", "definition"),
        ):
            [part] = (await client.read_resource(uri)).contents
            assert key in json.loads(text_of(part)), uri
        templates = {item.uri_template for item in (await client.list_resource_templates()).resource_templates}
        assert "runlane://runs/{run_id}" in templates
        for uri in ("runlane://lanes/none", "runlane://definitions/agent/none", "runlane://definitions/cat/x", "x://y"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)


def text_of(part: Any) -> str:
    assert isinstance(part, types.TextResourceContents)
    return part.text


async def test_a_request_without_a_key_learns_where_the_metadata_is(idle_api: Api) -> None:
    refused = await idle_api.client.post("/mcp", json={}, headers={"Authorization": "Bearer nonsense"})
    assert refused.status_code == 401
    where = f"{idle_api.url}/.well-known/oauth-protected-resource/mcp"
    assert refused.headers["www-authenticate"] == f'Bearer resource_metadata="{where}"'
    metadata = (await idle_api.client.get(where, headers={"Authorization": ""})).json()
    assert metadata["resource"] == f"{idle_api.url}/mcp"
    assert metadata["bearer_methods_supported"] == ["header"]
    assert "runs:write" in metadata["scopes_supported"]
    assert "authorization_servers" not in metadata
    for method in ("GET", "DELETE"):
        assert (await idle_api.client.request(method, "/mcp")).status_code == 405


async def test_a_stopping_server_returns_the_run_of_a_call(own_app: App, tmp_path: Path) -> None:
    async with serving(own_app, worker=WorkerOptions()) as api:
        notes = Notes()
        async with mcp_client(api.url, await api.key("operator")) as client:
            arguments = {"kind": "task", "name": "guard", "input": {"until": str(tmp_path / "x")}, "wait_seconds": 600}
            calling = asyncio.create_task(client.call_tool("start_run", arguments, progress_callback=notes))
            await eventually(lambda: len(notes.numbers) > 1, "progress of the run")
            api.parts.end_streams()
            answer = value_of(await calling)
            assert (answer["status"], answer["run_id"]) == ("running", notes.run_id)
        (tmp_path / "x").touch()


async def test_a_client_keeps_a_memory(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async with mcp_client(api.url, await api.key("operator")) as client:
        vault = value_of(await client.call_tool("create_vault", {"title": "work"}))["id"]
        memory = value_of(await client.call_tool("create_memory_in_vault", {"vault_id": vault, "title": "project"}))[
            "id"
        ]
        place = {"vault_id": vault, "memory_id": memory}
        first = {**place, "raw_entry": "The launch is on Monday.", "summary": "Launch", "idempotency_key": "e-1"}
        added = await client.call_tool("add_entry", first)
        again = await client.call_tool("add_entry", first)
        entry_id = value_of(added)["entry"]["id"]
        assert entry_id == value_of(again)["entry"]["id"]
        assert added.content[0].text.startswith("enqueued")  # type: ignore[union-attr]  # of kind text
        await client.call_tool("add_entry", {**place, "raw_entry": "Ada leads the project."})
        listed = value_of(await client.call_tool("list_entries", {**place, "limit": 1}))
        assert (listed["count"], listed["applied_limit"], listed["entries"][0]["text"]) == (
            1,
            1,
            "Ada leads the project.",
        )
        for wrong in ({"before": 1, "after": 1}, {"before": 2**63}, {"after": 2**63}):
            assert (await client.call_tool("list_entries", {**place, **wrong})).is_error, wrong
        changed = {"entry_id": entry_id, "raw_entry": "The launch is on Friday.", "reason": "moved"}
        value_of(await client.call_tool("correct_entry", {**place, **changed}))
        found = value_of(await client.call_tool("search_memories", {**place, "query": "launch", "top_k": 5}))
        assert [entry["text"] for entry in found["entries"]] == ["The launch is on Friday."]
        await client.call_tool("put_context", {**place, "content": "The project of Ada."})
        assert (await client.call_tool("get_context", place)).content == [types.TextContent(text="The project of Ada.")]
        waited = await client.call_tool("await_consistency", {"memory_id": memory})
        assert waited.content == [types.TextContent(text="consistent")]
        parts = (await client.read_resource(f"runlane://memories/{memory}")).contents
        assert [part.mime_type for part in parts] == ["application/json", "text/plain"]
        assert text_of(parts[1]) == "The project of Ada."
        listed = value_of(await client.call_tool("list_memories", {}))
        assert ({item["id"] for item in listed["memories"]}, listed["next_cursor"]) == ({memory}, None)
        other = value_of(await client.call_tool("create_memory_in_vault", {"vault_id": vault, "title": "second"}))["id"]
        monkeypatch.setattr(memory_tools, "_LISTED", 1)
        pages = [value_of(await client.call_tool("list_memories", {}))]
        while pages[-1]["next_cursor"]:
            pages.append(value_of(await client.call_tool("list_memories", {"cursor": pages[-1]["next_cursor"]})))
        assert [item["id"] for page in pages for item in page["memories"]] == sorted([memory, other])
        prompts = value_of(await client.call_tool("get_default_prompts", {}))
        assert prompts["templates"].keys() == {"context_prompt", "entry_capture_prompt", "summary_prompt"}
        shown = await client.get_prompt("entry_capture_prompt", {"memory_id": memory})
        assert memory in str(shown.messages[0].content)
        elsewhere = value_of(await client.call_tool("create_vault", {"title": "other"}))["id"]
        wrong = await client.call_tool("get_memory", {"vault_id": elsewhere, "memory_id": memory})
        assert wrong.is_error
    await create_tenant(api.parts.database, "acme", actor="test")
    key = (await create_key(api.parts.database, "theirs", "operator", actor="test", tenant="acme"))[1]
    async with mcp_client(api.url, key) as client:
        for name, more in (("get_context", {}), ("add_entry", {"raw_entry": "x"}), ("get_memory", {})):
            assert (await client.call_tool(name, {"memory_id": memory, **more})).is_error, name
        assert value_of(await client.call_tool("list_memories", {}))["memories"] == []
    async with mcp_client(api.url, await api.key("viewer")) as client:
        assert len((await client.list_prompts()).prompts) == 3
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("add_entry", {"memory_id": memory, "raw_entry": "x"})
