"""Assistants with the unmodified LangGraph client."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph_sdk.errors import APIStatusError, ConflictError, NotFoundError, UnprocessableEntityError

from runlane.api.agent_server import deletion
from runlane.errors import Unavailable
from tests.acceptance.api.agent_client import HostedGraph, host, lacking, langgraph_client, stranger_key
from tests.acceptance.api.serving import Api

# As the official server answered: the id of a default assistant follows from the id of its graph.
DEFAULT_OF_THREE = "cce3e224-f9e7-5b27-a77f-c6feab9cd704"
RECORDED: dict[str, Any] = {
    "assistant_id": DEFAULT_OF_THREE,
    "graph_id": "three",
    "config": {},
    "context": {},
    "metadata": {"created_by": "system"},
    "name": "three",
    "created_at": "2026-11-16T17:57:46.261006+00:00",
    "updated_at": "2026-11-16T17:57:46.261006+00:00",
    "version": 1,
    "description": None,
}


async def test_a_graph_has_a_default_assistant(idle_api: Api) -> None:
    await host(idle_api)
    async with langgraph_client(idle_api) as client:
        assert lacking(RECORDED, await client.assistants.get(DEFAULT_OF_THREE)) == []
        assert (await client.assistants.get("three"))["assistant_id"] == DEFAULT_OF_THREE
        found = await client.assistants.search(graph_id="three")
        assert [item["assistant_id"] for item in found] == [DEFAULT_OF_THREE]
        assert await client.assistants.count() == 1
        with pytest.raises(ConflictError):
            await client.assistants.delete(DEFAULT_OF_THREE)


async def test_versions_of_an_assistant(idle_api: Api) -> None:
    await host(idle_api)
    async with langgraph_client(idle_api) as client:
        made = await client.assistants.create(
            "three", {"configurable": {"k": "v"}}, metadata={"team": "x"}, name="mine", description="d"
        )
        assert (made["config"], made["context"]) == ({"configurable": {"k": "v"}}, {"k": "v"})
        mine = made["assistant_id"]
        with pytest.raises(ConflictError):
            await client.assistants.create("three", assistant_id=mine)
        same = await client.assistants.create("three", assistant_id=mine, if_exists="do_nothing")
        assert same == made
        changed = await client.assistants.update(mine, name="mine2", metadata={"team": "y"})
        assert (changed["version"], changed["name"], changed["config"]) == (2, "mine2", made["config"])
        assert [item["version"] for item in await client.assistants.get_versions(mine)] == [2, 1]
        back = await client.assistants.set_latest(mine, 1)
        assert (back["version"], back["name"], back["metadata"]) == (1, "mine", {"team": "x"})
        assert (await client.assistants.update(mine, name="mine3"))["version"] == 3
        await client.assistants.delete(mine)
        with pytest.raises(NotFoundError):
            await client.assistants.get(mine)


async def test_an_assistant_is_deleted_with_its_threads(idle_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await host(idle_api)
    async with langgraph_client(idle_api) as client:
        mine, other = [(await client.assistants.create("three"))["assistant_id"] for _ in range(2)]
        threads: list[str] = []
        for assistant_id in (mine, mine, other, "three"):
            thread = (await client.threads.create())["thread_id"]
            await client.runs.create(thread, assistant_id, input={})
            threads.append(thread)
        with pytest.raises(ConflictError, match="is the default"):
            await client.assistants.delete("three", delete_threads=True)
        # The request breaks off after the first thread, and is sent again.
        remove_thread = deletion.remove_thread

        async def break_off(*arguments: Any) -> None:
            await remove_thread(*arguments)
            raise Unavailable("The connection is lost.")

        monkeypatch.setattr(deletion, "remove_thread", break_off)
        with pytest.raises(APIStatusError):
            await client.assistants.delete(mine, delete_threads=True)
        monkeypatch.undo()
        assert await client.threads.count() == 3
        await client.assistants.delete(mine, delete_threads=True)
        assert sorted(item["thread_id"] for item in await client.threads.search()) == sorted(threads[2:])
        with pytest.raises(NotFoundError):
            await client.assistants.get(mine)
        await client.assistants.delete(other)
        assert await client.threads.count() == 2


async def test_searches_have_pages(idle_api: Api) -> None:
    await host(idle_api)
    async with langgraph_client(idle_api) as client:
        for name in ("alpha", "Beta", "gamma"):
            await client.assistants.create("three", name=name, metadata={"kind": {"of": name}})
        page = await client.assistants.search(limit=2, sort_by="name", sort_order="asc", response_format="object")
        assert (len(page["assistants"]), page["next"]) == (2, "2")
        rest = await client.assistants.search(limit=2, offset=2, response_format="object")
        assert (len(rest["assistants"]), rest["next"]) == (2, None)
        assert [item["name"] for item in await client.assistants.search(name="BET")] == ["Beta"]
        found = await client.assistants.search(metadata={"kind": {"of": "gamma"}}, select=["name", "version"])
        assert found == [{"name": "gamma", "version": 1}]
        assert await client.assistants.count(metadata={"kind": {"of": "nothing"}}) == 0


async def test_what_servers_know_about_a_graph(idle_api: Api) -> None:
    await host(idle_api)
    async with langgraph_client(idle_api) as client:
        assert len((await client.assistants.get_graph("three"))["nodes"]) == 3
        assert len((await client.assistants.get_graph("three", xray=True))["nodes"]) == 4
        schemas = await client.assistants.get_schemas("three")
        assert (schemas["graph_id"], schemas["context_schema"]) == ("three", None)
        assert list(await client.assistants.get_subgraphs("three")) == ["a"]
        assert list(await client.assistants.get_subgraphs("three", recurse=True)) == ["a", "a|deep"]
        with pytest.raises(NotFoundError):
            await client.assistants.get_subgraphs("three", namespace="b")
        await host(idle_api, HostedGraph("broken", error="ModuleNotFoundError: No module named 'x'"))
        with pytest.raises(ConflictError, match="No module named 'x'"):
            await client.assistants.get_schemas("broken")


async def test_bad_requests_change_nothing(idle_api: Api) -> None:
    await host(idle_api)
    async with langgraph_client(idle_api) as client:
        with pytest.raises(NotFoundError, match=r'did you mean "three"'):
            await client.assistants.create("thre")
        with pytest.raises(NotFoundError):
            await client.assistants.get("00000000-0000-0000-0000-000000000000")
        with pytest.raises(UnprocessableEntityError, match="UUID"):
            await client.assistants.create("three", assistant_id="abc")
        for body in ({"graph_id": "three", "bogus": 1}, {"graph_id": "three", "config": {"recursion_limit": "x"}}):
            answer = await idle_api.client.post("/assistants", json=body)
            assert answer.status_code == 422
            assert answer.json()["detail"] == answer.json()["message"]
        assert await client.assistants.count() == 1


async def test_tenants_have_their_own_assistants(idle_api: Api) -> None:
    await host(idle_api)
    other = await stranger_key(idle_api)
    async with langgraph_client(idle_api) as client, langgraph_client(idle_api, other) as stranger:
        mine = (await client.assistants.create("three"))["assistant_id"]
        with pytest.raises(NotFoundError):
            await stranger.assistants.get(mine)
        assert await stranger.assistants.count() == 1
