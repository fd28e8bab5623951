"""The snapshot of each checkpoint has the tasks that LangGraph finds for it."""

from __future__ import annotations

import operator
from typing import Annotated, Any, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from runlane.domain.text import load_json
from runlane.graphs.exports import Graph
from runlane.graphs.snapshot import CheckpointSnapshots


class State(TypedDict):
    value: Annotated[int, operator.add]
    items: Annotated[list[str], operator.add]


def node(name: str) -> Any:
    def add(state: State) -> dict[str, Any]:
        return {"value": 1, "items": [name]}

    return add


def builder(*names: str) -> Any:
    made: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    for name in names:
        made.add_node(name, node(name))
    return made


def line() -> Any:
    made = builder("a", "b")
    for source, target in ((START, "a"), ("a", "b"), ("b", END)):
        made.add_edge(source, target)
    return made


def fan() -> Any:
    """Two nodes at once whose names are not in the order of the graph, and one that waits for both."""
    made = builder("z", "b", "end")
    for source, target in ((START, "z"), (START, "b"), (["z", "b"], "end"), ("end", END)):
        made.add_edge(source, target)
    return made


def loop() -> Any:
    """A node that is triggered again and again, then another one."""
    made = builder("a", "b")
    made.add_edge(START, "a")

    def again(state: State) -> str:
        return "a" if state["value"] < 4 else "b"

    made.add_conditional_edges("a", again, ["a", "b"])
    return made


def sends() -> Any:
    """Tasks of sends, beside a node that an edge triggers."""
    made = builder("a", "b", "c")
    made.add_edge(START, "a")

    def both(state: State) -> list[Send]:
        return [Send("b", state), Send("b", state)]

    made.add_conditional_edges("a", both, ["b"])
    made.add_edge("a", "c")
    return made


def nested() -> Any:
    made = builder("a", "b")
    made.add_node("inner", fan().compile())
    for source, target in ((START, "a"), ("a", "inner"), ("inner", "b"), ("b", END)):
        made.add_edge(source, target)
    return made


class DescribingSaver(InMemorySaver):
    """Describes each checkpoint when it is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.describe: Any = None
        self.described: dict[str, dict[str, Any]] = {}

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        self.described[checkpoint["id"]] = load_json(self.describe(config, checkpoint, metadata))
        return super().put(config, checkpoint, metadata, new_versions)


@pytest.mark.parametrize("make", [line, fan, loop, sends, nested])
def test_the_tasks_are_those_of_langgraph(make: Any) -> None:
    saver = DescribingSaver()
    graph = make().compile(checkpointer=saver)
    saver.describe = CheckpointSnapshots(cast("Graph", graph)).describe
    config: RunnableConfig = {"configurable": {"thread_id": "one"}}

    graph.invoke({"value": 0, "items": []}, config)

    history = list(graph.get_state_history(config))
    assert len(history) > 2
    for state in history:
        found = saver.described[state.config["configurable"]["checkpoint_id"]]
        assert found["next"] == list(state.next)
        tasks = [(task["id"], task["name"], tuple(task["path"])) for task in found["tasks"]]
        assert tasks == [(task.id, task.name, task.path) for task in state.tasks]


def test_the_tasks_of_a_subgraph_are_those_of_langgraph() -> None:
    saver = DescribingSaver()
    graph = nested().compile(checkpointer=saver)
    saver.describe = CheckpointSnapshots(cast("Graph", graph)).describe
    config: RunnableConfig = {"configurable": {"thread_id": "one"}}
    graph.invoke({"value": 0, "items": []}, config)
    outer = next(state for state in graph.get_state_history(config) if state.next == ("inner",))
    inner = cast("RunnableConfig", outer.tasks[0].state)

    history = list(graph.get_state_history(inner))

    assert len(history) > 2
    for state in history:
        found = saver.described[state.config["configurable"]["checkpoint_id"]]
        assert [task["id"] for task in found["tasks"]] == [task.id for task in state.tasks]
        assert found["next"] == list(state.next)
