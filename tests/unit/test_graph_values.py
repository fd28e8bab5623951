"""Values of graphs as JSON: nothing in the state of a graph can fail its stream."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.types import Interrupt, Send
from pydantic import BaseModel

from runlane.domain.text import load_json
from runlane.graphs.plain import to_json


@dataclass
class _Point:
    x: Any


class _Pair(NamedTuple):
    a: int
    b: str


class _Model(BaseModel):
    name: str


class _Colour(Enum):
    RED = "red"


class _Hostile:
    def __str__(self) -> str:
        raise ValueError

    def model_dump(self) -> dict[str, Any]:
        raise ValueError


_VALUES: list[tuple[Any, Any]] = [
    (_Point((1, 2)), {"x": [1, 2]}),
    (_Pair(1, "b"), {"a": 1, "b": "b"}),
    (_Model(name="n"), {"name": "n"}),
    (_Colour.RED, "red"),
    (deque([1, 2]), [1, 2]),
    (frozenset({1}), [1]),
    (b"\x00\xff", "AP8="),
    (Decimal("1.5"), 1.5),
    (timedelta(seconds=2), 2.0),
    (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
    (ValueError("no"), {"error": "ValueError", "message": "no"}),
    (Send("node", {"a": 1}), {"node": "node", "arg": {"a": 1}}),
    (Interrupt(value={"q": 1}, id="i"), {"value": {"q": 1}, "id": "i", "response_schema": None}),
    ({1: "a"}, {"1": "a"}),
    (_Hostile(), "<_Hostile>"),
    ("\ud800", "�"),
    (2**70, str(2**70)),
    ({_Pair(1, "b"): _Point("\ud800")}, {"_Pair(a=1, b='b')": {"x": "�"}}),
    ([_Model(name="n"), 2**70, _Colour.RED], [{"name": "n"}, str(2**70), "red"]),
]


@pytest.mark.parametrize(("value", "expected"), _VALUES)
def test_a_value_has_json(value: Any, expected: Any) -> None:
    assert load_json(to_json(value)) == expected


def test_messages_have_their_type() -> None:
    shown = load_json(to_json([HumanMessage("hi", id="1"), AIMessage("\ud800", id="2")]))
    assert [(message["type"], message["content"]) for message in shown] == [("human", "hi"), ("ai", "�")]


def test_a_value_that_contains_itself_ends() -> None:
    value: list[Any] = []
    value.append(value)
    assert to_json(value).startswith("[[")
