"""A hosted graph as a node of a local one, with LangGraph's own RemoteGraph."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from operator import add
from typing import Annotated, Any

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.pregel.remote import RemoteGraph
from typing_extensions import TypedDict

from runlane.api.services import WorkerOptions
from runlane.app import App
from tests.acceptance.api.agent_client import langgraph_client
from tests.acceptance.api.agent_graphs import add_graphs
from tests.acceptance.api.serving import serving


class _State(TypedDict):
    value: int
    items: Annotated[list[str], add]


@pytest.fixture
async def remote(own_app: App) -> AsyncGenerator[RemoteGraph]:
    async with serving(add_graphs(own_app), worker=WorkerOptions()) as api, langgraph_client(api) as client:
        yield RemoteGraph("three", client=client)


async def test_a_hosted_graph_is_a_node_of_a_local_graph(remote: RemoteGraph) -> None:
    async def first(state: _State) -> dict[str, Any]:
        return {"value": state["value"], "items": ["local"]}

    async def hosted(state: _State) -> dict[str, Any]:
        answer: Any = await remote.ainvoke({"value": state["value"], "items": []})
        return {"value": answer["value"], "items": answer["items"]}

    builder = StateGraph(_State)
    builder.add_node("first", first)
    builder.add_node("hosted", hosted)
    builder.add_edge(START, "first")
    builder.add_edge("first", "hosted")
    builder.add_edge("hosted", END)
    graph = builder.compile()
    result: Any = await graph.ainvoke({"value": 1, "items": []})
    assert result == {"value": 4, "items": ["local", "a", "b", "c"]}


async def test_a_hosted_graph_streams_and_has_a_state_and_a_drawing(remote: RemoteGraph) -> None:
    config: Any = {"configurable": {"thread_id": "0195a3b0-1111-7000-8000-000000000001"}}
    client: Any = remote.client
    await client.threads.create(thread_id=config["configurable"]["thread_id"])
    chunks = [chunk async for chunk in remote.astream({"value": 1, "items": []}, config, stream_mode="updates")]
    assert [list(chunk) for chunk in chunks] == [["a"], ["b"], ["c"]]
    state = await remote.aget_state(config)
    assert (state.values, state.next) == ({"value": 4, "items": ["a", "b", "c"]}, ())
    history = [past async for past in remote.aget_state_history(config)]
    assert len(history) >= 4
    drawing = await remote.aget_graph()
    assert {"a", "b", "c"} <= set(drawing.nodes)
