"""The checkpointer of an attempt: the state after the last task is the one that LangGraph would read."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from runlane.graphs.recent_checkpoint import RecentCheckpoint
from runlane.graphs.run_saver import RunSaver, ended_state
from runlane.graphs.snapshot import CheckpointSnapshots
from runlane.store.threads.graph_writes import GraphWrites, store_alone
from tests.harness import Store

CONFIG: Any = {"configurable": {"thread_id": "t1", "checkpoint_ns": ""}}


class Queue:
    """Reports that too much is pending after each write, so the saver has it stored at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: list[GraphWrites] = []

    def add(self, written: GraphWrites) -> bool:
        self._pending.append(written)
        return False

    async def write(self, written: GraphWrites) -> None:
        self.add(written)
        await self.settle()

    async def settle(self) -> None:
        while self._pending:
            written = self._pending.pop(0)
            await self._store.database.transact(lambda session, written=written: store_alone(session, written))


class Note(BaseModel):
    text: str


class State(TypedDict, total=False):
    total: Annotated[int, operator.add]
    notes: list[Note]
    log: Annotated[list[str], operator.add]
    answer: str


def _extend(left: list[str], writes: Sequence[Any]) -> list[str]:
    return [*left, *(text for write in writes for text in write)]


class Delta(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(_extend)]


def _writing(update: Any) -> Any:
    def node(_: Any) -> Any:
        return update

    return node


def _graph(state: Any, *nodes: Any, fan_out: bool = False) -> Any:
    builder: Any = StateGraph(state)
    names = [f"n{number}" for number in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        builder.add_node(name, node)
    builder.add_edge(START, names[0])
    if fan_out:
        builder.add_conditional_edges(names[0], _writing([Send(names[1], {"total": 0})] * 3), [names[1]])
    else:
        for source, target in zip(names, [*names[1:], END], strict=True):
            builder.add_edge(source, target)
    return builder.compile()


def _add(_: Any) -> dict[str, Any]:
    return {"total": 1, "notes": [Note(text="a")]}


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def _ask(_: Any) -> dict[str, Any]:
    return {"answer": interrupt("which?")}


ENDS = {
    "values and channels that were never written": (_graph(State, _add, _add), {"total": 1}),
    "a last task without writes": (_graph(State, _add, _nothing), {"total": 1}),
    "sends": (_graph(State, _nothing, _writing({"total": 2}), fan_out=True), {"total": 1}),
    "one channel": (_graph(Annotated[list[str], operator.add], _writing(["b"])), ["a"]),
}


async def _ended(store: Store, graph: Any, given: Any) -> tuple[Any, Any]:
    """Execute a graph. Return the state after it, and the one that LangGraph reads."""
    snapshot = CheckpointSnapshots(graph).describe
    graph.checkpointer = RunSaver(store.database, "default", Queue(store), RecentCheckpoint("t1"), snapshot, "async")
    await graph.ainvoke(given, CONFIG)
    return ended_state(graph, CONFIG), await graph.aget_state(CONFIG)


@pytest.mark.parametrize("name", ENDS)
async def test_the_state_of_a_graph_that_has_ended_is_that_of_langgraph(store: Store, name: str) -> None:
    found, read = await _ended(store, *ENDS[name])
    assert (found.values, found.next, found.interrupts) == (read.values, (), ())
    assert type(found.values) is type(read.values)


async def test_a_graph_that_waits_has_not_ended(store: Store) -> None:
    found, read = await _ended(store, _graph(State, _add, _ask), {"total": 1})
    assert (found, read.next) == (None, ("n1",))


async def test_a_channel_that_is_rebuilt_from_its_writes_is_left_to_langgraph(store: Store) -> None:
    found, read = await _ended(store, _graph(Delta, _writing({"log": ["b"]})), {"log": ["a"]})
    assert (found, read.values) == (None, {"log": ["a", "b"]})


async def test_a_thread_without_history_is_not_read(store: Store) -> None:
    await _ended(store, _graph(State, _add), {"total": 1})
    parts: Any = (store.database, "default", Queue(store), RecentCheckpoint("t1"), None, "async")
    assert await RunSaver(*parts).aget_tuple(CONFIG) is not None
    saver = RunSaver(*parts, has_history=False)
    assert await saver.aget_tuple(CONFIG) is None
    # Another thread may have one.
    await saver.acopy_thread("t1", "t2")
    other: Any = {"configurable": {"thread_id": "t2", "checkpoint_ns": ""}}
    assert await saver.aget_tuple(other) is not None
