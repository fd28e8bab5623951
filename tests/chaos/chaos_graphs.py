"""The graphs that the chaos tests execute. A node dies with its worker where the test has left a file for it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Annotated, Any, NotRequired

from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt
from typing_extensions import TypedDict

from runlane import App
from runlane.testing import crash_points

crash_points.install_from_environment()

app = App()


def _joined(left: list[str], right: list[str]) -> list[str]:
    return [*left, *right]


def _sum(left: int, right: int) -> int:
    return left + right


class State(TypedDict):
    count: Annotated[int, _sum]
    log: Annotated[list[str], _joined]


# Branches of a fan-out are executed at once: one death must not use up the files of two.
_DYING = threading.Lock()


def folder() -> Path:
    return Path(os.environ["CHAOS_FOLDER"])


def at(place: str) -> None:
    """Note that a node is here. The worker dies if the test wants that, once."""
    with (folder() / "places.log").open("a") as file:
        file.write(f"{place} {os.getpid()}\n")
    with _DYING:
        try:
            (folder() / f"kill-{place}").unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def _pass_gate(name: str) -> None:
    """Wait until the test has opened a gate."""
    while not (folder() / name).exists():
        time.sleep(0.02)


def _work(name: str) -> Any:
    def node(state: State) -> dict[str, Any]:
        at(f"{name}.begin")
        at(f"{name}.end")
        return {"count": 1, "log": [name]}

    return node


def _asks(name: str, questions: int = 1) -> Any:
    async def node(state: State) -> dict[str, Any]:
        at(f"{name}.begin")
        answers: list[str] = []
        for number in range(questions):
            answers.append(interrupt({"question": f"{name}{number}"}))
            at(f"{name}.answered{number}")
        return {"count": 1, "log": [f"{name}={answer}" for answer in answers]}

    return node


def _spread(state: State) -> list[Send]:
    return [Send("work", {"log": [f"w{number}"]}) for number in range(3)]


def _spread_work(state: State) -> dict[str, Any]:
    (name,) = state["log"]
    at(f"{name}.begin")
    return {"count": 1, "log": [name]}


def _nested() -> Any:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("before", _work("before"))
    builder.add_node("inner", _asks("inner"))
    builder.add_node("other", _asks("other"))
    builder.add_node("after", _work("after"))
    builder.add_edge(START, "before")
    builder.add_edge("before", "inner")
    builder.add_edge("inner", "other")
    builder.add_edge("other", "after")
    builder.add_edge("after", END)
    nested = builder.compile()

    async def call(state: State) -> dict[str, Any]:
        # Only what it adds: the reducers of the outer graph would add the rest again.
        ended = await nested.ainvoke({"count": 0, "log": []})
        return {"count": ended["count"], "log": ended["log"]}

    return call


def approvals() -> StateGraph[Any, Any, Any, Any]:
    """Two approvals in the graph (one of them with two questions), two in a subgraph, a fan-out, additive reducers."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("first", _work("first"))
    builder.add_node("approve", _asks("approve"))
    builder.add_node("work", _spread_work)
    builder.add_node("join", _work("join"))
    builder.add_node("nested", _nested())
    builder.add_node("confirm", _asks("confirm", 2))
    builder.add_node("last", _work("last"))
    builder.add_edge(START, "first")
    builder.add_edge("first", "approve")
    builder.add_conditional_edges("approve", _spread, ["work"])
    builder.add_edge("work", "join")
    builder.add_edge("join", "nested")
    builder.add_edge("nested", "confirm")
    builder.add_edge("confirm", "last")
    builder.add_edge("last", END)
    return builder


# Where its worker may die, in the order in which a run passes.
PLACES = (
    "first.begin", "first.end", "approve.begin", "approve.answered0", "w0.begin", "w1.begin", "w2.begin", "join.begin",
    "join.end", "before.begin", "before.end", "inner.begin", "inner.answered0", "other.begin", "other.answered0",
    "after.begin", "after.end", "confirm.begin", "confirm.answered0", "confirm.answered1", "last.begin", "last.end",
)  # fmt: skip
# The questions in their order; each gets its own answer.
QUESTIONS = ("approve0", "inner0", "other0", "confirm0", "confirm1")


def gated() -> StateGraph[Any, Any, Any, Any]:
    """A node that waits for a gate, between two others."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)

    def wait(state: State) -> dict[str, Any]:
        at("wait.begin")
        _pass_gate("gate")
        at("wait.end")
        return {"count": 1, "log": ["wait"]}

    builder.add_node("first", _work("first"))
    builder.add_node("wait", wait)
    builder.add_node("last", _work("last"))
    builder.add_edge(START, "first")
    builder.add_edge("first", "wait")
    builder.add_edge("wait", "last")
    return builder


def poison() -> StateGraph[Any, Any, Any, Any]:
    """A node that kills every worker that executes it, after one that does not."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)

    def die(state: State) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    builder.add_node("first", _work("first"))
    builder.add_node("die", die)
    builder.add_edge(START, "first")
    builder.add_edge("first", "die")
    return builder


class Ticks(TypedDict):
    count: Annotated[int, _sum]
    wanted: int
    pause_seconds: float
    # A gate, and the tick before which the node waits for it.
    gate: NotRequired[str]
    gate_at: NotRequired[int]


def ticking() -> StateGraph[Any, Any, Any, Any]:
    """A node that is executed as often as the input says, and reports its number each time."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Ticks)

    async def tick(state: Ticks) -> dict[str, Any]:
        gate = folder() / state.get("gate", "")
        # A drain can cancel this, as it could not cancel a thread that waits.
        while state["count"] == state.get("gate_at") and not gate.exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.02)
        get_stream_writer()({"tick": state["count"]})
        await asyncio.sleep(state["pause_seconds"])
        return {"count": 1}

    def again(state: Ticks) -> str:
        return "tick" if state["count"] < state["wanted"] else END

    builder.add_node("tick", tick)
    builder.add_edge(START, "tick")
    builder.add_conditional_edges("tick", again, ["tick", END])
    return builder


app.graph("approvals", approvals())
app.graph("ticking", ticking())
app.graph("gated", gated())
app.graph("poison", poison())
