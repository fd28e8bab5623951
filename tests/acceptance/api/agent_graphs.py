"""The graphs behind the recorded answers: three trivial nodes, one that asks, sleeps or fails, and a chat."""

from __future__ import annotations

import asyncio
import itertools
import operator
from typing import Annotated, Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import interrupt
from typing_extensions import TypedDict

from runlane.app import App


class State(TypedDict):
    value: int
    items: Annotated[list[str], operator.add]


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def _node(name: str) -> Any:
    def node(state: State) -> dict[str, Any]:
        if name == "b":
            get_stream_writer()({"note": "from b"})
        return {"value": state["value"] + 1, "items": [name]}

    return node


def ask(state: State) -> dict[str, Any]:
    answer = interrupt({"question": "ok?", "value": state["value"]})
    return {"items": [f"ask:{answer}"]}


async def nap(state: State) -> dict[str, Any]:
    if state["value"] < 100:
        await asyncio.sleep(600)
    return {"items": ["nap"]}


def boom(state: State) -> dict[str, Any]:
    raise ValueError("boom on purpose")


async def talk(state: Chat) -> dict[str, Any]:
    asked, _, words = str(state["messages"][-1].content).partition("say ")
    text = "hello there friend" if asked or not words else " ".join(["word"] * int(words))
    model = GenericFakeChatModel(messages=iter([AIMessage(text, id="ai-1")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


def chain(state: Any, **nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(state)
    for name, node in nodes.items():
        builder.add_node(name, node)
    for source, target in itertools.pairwise([START, *nodes, END]):
        builder.add_edge(source, target)
    return builder


def add_graphs(app: App) -> App:
    """Host the recorded graphs."""
    app.graph("three", chain(State, a=_node("a"), b=_node("b"), c=_node("c")))
    app.graph("human", chain(State, a=_node("a"), ask=ask, c=_node("c")))
    app.graph("sleepy", chain(State, a=_node("a"), nap=nap, c=_node("c")))
    app.graph("failing", chain(State, a=_node("a"), boom=boom))
    app.graph("chat", chain(Chat, talk=talk))
    return app
