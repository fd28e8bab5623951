"""The checkpointer passes the conformance suite of LangGraph on both databases, and graphs run on it."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from runlane.graphs.saver import RunlaneSaver
from runlane.store.threads.graph_writes import GraphWrites
from tests.harness import Store

CONFIG: Any = {"configurable": {"thread_id": "t1"}}


async def test_the_checkpointer_conforms(store: Store) -> None:
    async def saver() -> AsyncGenerator[BaseCheckpointSaver[str]]:
        yield RunlaneSaver(store.database)

    report = await validate(checkpointer_test("RunlaneSaver")(saver))
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failures == {}
    assert {name for name, result in report.results.items() if not result.passed} == set()


class State(TypedDict):
    total: Annotated[int, operator.add]
    log: Annotated[list[str], operator.add]


def add(state: State) -> dict[str, Any]:
    return {"total": 1, "log": ["add"]}


def ask(state: State) -> dict[str, Any]:
    return {"total": interrupt({"question": "how many?"}), "log": ["ask"]}


def build() -> Any:
    graph: Any = StateGraph(State)
    graph.add_node("add", add)
    graph.add_node("ask", ask)
    graph.add_edge(START, "add")
    graph.add_edge("add", "ask")
    graph.add_edge("ask", END)
    return graph


async def test_a_graph_resumes_from_its_stored_checkpoint(store: Store) -> None:
    graph = build().compile(checkpointer=RunlaneSaver(store.database))
    stopped = await graph.ainvoke({"total": 0, "log": []}, CONFIG)
    assert stopped["__interrupt__"][0].value == {"question": "how many?"}
    later = build().compile(checkpointer=RunlaneSaver(store.database))
    assert await later.ainvoke(Command(resume=5), CONFIG) == {"total": 6, "log": ["add", "ask"]}
    history = [item async for item in later.aget_state_history(CONFIG)]
    assert [item.next for item in history] == [(), ("ask",), ("add",), ("__start__",)]
    forked = await later.aupdate_state(history[1].config, {"total": 10})
    assert (await later.aget_state(forked)).values["total"] == 11


async def test_a_graph_in_a_thread_uses_the_same_checkpoints(store: Store) -> None:
    graph = build().compile(checkpointer=RunlaneSaver(store.database))
    await asyncio.to_thread(graph.invoke, {"total": 0, "log": []}, CONFIG)
    state = await graph.aget_state(CONFIG)
    assert (state.next, state.values["total"]) == (("ask",), 1)
    assert (await asyncio.to_thread(graph.get_state, CONFIG)).values == state.values
    assert len(await asyncio.to_thread(lambda: list(graph.get_state_history(CONFIG)))) == 3
    with pytest.raises(RuntimeError, match="Use the method with the prefix a"):
        graph.get_state(CONFIG)


async def test_threads_of_tenants_are_apart(store: Store) -> None:
    graph = build()
    ours = graph.compile(checkpointer=RunlaneSaver(store.database))
    theirs = graph.compile(checkpointer=RunlaneSaver(store.database, "acme"))
    await ours.ainvoke({"total": 0, "log": []}, CONFIG)
    assert (await theirs.aget_state(CONFIG)).values == {}
    assert [item async for item in RunlaneSaver(store.database, "acme").alist(None)] == []
    await theirs.ainvoke({"total": 5, "log": []}, CONFIG)
    assert (await ours.aget_state(CONFIG)).values["total"] == 1
    saver = RunlaneSaver(store.database, "acme")
    await saver.adelete_thread("t1")
    assert (await ours.aget_state(CONFIG)).values["total"] == 1
    assert await saver.aget_tuple(CONFIG) is None


async def test_a_write_function_receives_everything_that_the_graph_stores(store: Store) -> None:
    written: list[GraphWrites] = []

    async def write(writes: GraphWrites) -> None:
        written.append(writes)

    saver = RunlaneSaver(store.database, write=write, snapshot=lambda config, checkpoint, metadata: '{"next":[]}')
    await build().compile(checkpointer=saver).ainvoke({"total": 0, "log": []}, CONFIG)
    assert await store.count("checkpoints") == 0
    stored = [row for item in written for row in item.checkpoints]
    assert [row.thread for row in stored] == ["t1"] * 3
    assert {row.snapshot for row in stored} == {'{"next":[]}'}
    assert {row.channel for item in written for row in item.writes} >= {"total", "__interrupt__"}


@pytest.mark.parametrize("page", [1, 2, 50])
async def test_a_long_history_is_listed_in_pages(store: Store, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr("runlane.store.threads.checkpoints.PAGE", page)
    saver, other = RunlaneSaver(store.database), RunlaneSaver(store.database, "acme")
    for number in range(5):
        for owner in (saver, other):
            checkpoint: Any = empty_checkpoint() | {"id": f"c{number}"}
            config: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": "" if number % 2 else "child"}}
            await owner.aput(config, checkpoint, {"source": "loop", "step": number % 2}, {})

    async def ids(config: Any, **options: Any) -> list[str]:
        return [item.checkpoint["id"] async for item in saver.alist(config, **options)]

    assert await ids(CONFIG) == ["c4", "c3", "c2", "c1", "c0"]
    assert await ids(None) == ["c4", "c3", "c2", "c1", "c0"]
    assert await ids(None, limit=3) == ["c4", "c3", "c2"]
    assert await ids(CONFIG, filter={"step": 0}, limit=2) == ["c4", "c2"]
    assert await ids({"configurable": {**CONFIG["configurable"], "checkpoint_ns": "child"}}) == ["c4", "c2", "c0"]
    before: Any = {"configurable": {**CONFIG["configurable"], "checkpoint_id": "c3"}}
    assert await ids(CONFIG, before=before, limit=2) == ["c2", "c1"]


async def test_old_checkpoints_that_a_delta_channel_needs_are_kept(store: Store) -> None:
    """The value of a delta channel is computed from the writes since the last checkpoint with the whole value."""
    saver = RunlaneSaver(store.database)
    delta = {"counters_since_delta_snapshot": {"log": [1, 1]}}
    config: Any = CONFIG
    for number, values in enumerate([{"log": ["a"]}, {}, {}]):
        checkpoint: Any = {
            "v": 2, "id": f"c{number}", "ts": "", "channel_values": values, "versions_seen": {},
            "channel_versions": {"log": str(number)}, "updated_channels": None,
        }  # fmt: skip
        metadata: Any = {"step": number} if values else {"step": number, **delta}
        config = await saver.aput({"configurable": {**config["configurable"], "checkpoint_ns": ""}}, checkpoint,
                                  metadata, {"log": str(number)})  # fmt: skip
        await saver.aput_writes(config, [("log", [str(number)])], f"task{number}")
    await saver.aprune(["t1"])
    assert await store.count("checkpoints") == 3
    history = await saver.aget_delta_channel_history(config=config, channels=["log"])
    assert history["log"].get("seed") == ["a"]
    assert [value for _, _, value in history["log"]["writes"]] == [["0"], ["1"]]
