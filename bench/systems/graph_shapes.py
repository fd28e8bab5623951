"""The graphs that are measured: one of three trivial nodes, and one that waits in its second node.

Runlane and Aegra host this file as it is, so it imports only LangGraph and the notifications.
"""

from __future__ import annotations

import asyncio
import operator
from itertools import pairwise
from typing import Annotated, Any

from langgraph.config import get_config
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from bench import notify


class State(TypedDict):
    value: int
    items: Annotated[list[str], operator.add]


def _node(name: str) -> Any:
    async def node(state: State) -> dict[str, Any]:
        return {"value": state["value"] + 1, "items": [name]}

    return node


def _three() -> StateGraph[Any, Any, Any, Any]:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    for name in ("a", "b", "c"):
        builder.add_node(name, _node(name))
    for source, target in pairwise([START, "a", "b", "c", END]):
        builder.add_edge(source, target)
    return builder


class Held(TypedDict):
    key: int
    items: Annotated[list[str], operator.add]


async def _hold(state: Held) -> dict[str, Any]:
    notify.send("started", state["key"])
    # Only Runlane names the attempt; elsewhere each one waits.
    if get_config().get("metadata", {}).get("run_attempt", 1) == 1:
        await asyncio.sleep(600)
    return {"items": ["hold"]}


async def _begin(state: Held) -> dict[str, Any]:
    return {"items": ["begin"]}


def _held() -> StateGraph[Any, Any, Any, Any]:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Held)
    builder.add_node("begin", _begin)
    builder.add_node("hold", _hold)
    for source, target in pairwise([START, "begin", "hold", END]):
        builder.add_edge(source, target)
    return builder


three = _three()
held = _held()
