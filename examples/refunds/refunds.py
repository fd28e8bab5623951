"""A graph that checks a refund, asks a person about large ones, and pays. It needs no model and no key."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

ASK_FROM_EURO = 100


class Refund(TypedDict):
    """The state of the graph. Each node adds a line to the log."""

    order: str
    euro: int
    log: Annotated[list[str], operator.add]


def check(state: Refund) -> dict[str, Any]:
    """Check the order."""
    return {"log": [f"order {state['order']} is known"]}


def decide(state: Refund) -> Command[Literal["pay", "refuse"]]:
    """Ask a person about a large refund. The run ends here; the run with the answer continues."""
    if state["euro"] < ASK_FROM_EURO:
        return Command(goto="pay", update={"log": ["small enough"]})
    decision = interrupt({"question": "Pay this refund?", "order": state["order"], "euro": state["euro"]})
    return Command(goto="pay" if decision == "yes" else "refuse", update={"log": [f"a person said {decision}"]})


def pay(state: Refund) -> dict[str, Any]:
    """Pay."""
    return {"log": [f"paid {state['euro']} euro"]}


def refuse(state: Refund) -> dict[str, Any]:
    """Refuse."""
    return {"log": ["refused"]}


builder: StateGraph[Any, Any, Any, Any] = StateGraph(Refund)
builder.add_node(check)
builder.add_node(decide)
builder.add_node(pay)
builder.add_node(refuse)
builder.add_edge(START, "check")
builder.add_edge("check", "decide")
builder.add_edge("pay", END)
builder.add_edge("refuse", END)
graph = builder.compile()
