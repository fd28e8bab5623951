"""A graph of three trivial nodes, hosted by Runlane."""

from __future__ import annotations

import operator
from itertools import pairwise
from typing import Annotated, Any

from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from runlane import App


class State(TypedDict):
    value: int
    items: Annotated[list[str], operator.add]


def _node(name: str) -> Any:
    async def node(state: State) -> dict[str, Any]:
        return {"value": state["value"] + 1, "items": [name]}

    return node


def three() -> StateGraph[Any, Any, Any, Any]:
    """Return the graph."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    for name in ("a", "b", "c"):
        builder.add_node(name, _node(name))
    for source, target in pairwise([START, "a", "b", "c", END]):
        builder.add_edge(source, target)
    return builder


app = App()
app.graph("three", three())
