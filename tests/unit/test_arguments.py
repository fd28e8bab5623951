"""Arguments of tools are checked against the parts of JSON Schema that can be checked safely."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.steps.arguments import misfit

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "rate": {"type": "number"},
        "on": {"type": "boolean"},
        "kind": {"enum": ["a", "b"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "either": {"type": ["string", "null"]},
        "inner": {"type": "object", "required": ["x"], "additionalProperties": False, "properties": {"x": {}}},
        "odd": {"type": "unheard-of"},
    },
    "required": ["text"],
}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"count": 3, "rate": 1, "on": False, "kind": "b"},
        {"count": 3.0, "rate": 0.5},
        {"tags": [], "either": None},
        {"tags": ["x"], "either": "y", "inner": {"x": 1}},
        {"unknown": 1, "odd": object()},
    ],
)
def test_what_fits(more: dict[str, Any]) -> None:
    assert misfit({"text": "t", **more}, SCHEMA) is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, '"text" is missing'),
        ([], "the arguments must be object, not array"),
        ({"text": 5}, '"text" must be string, not number'),
        ({"text": "", "count": True}, '"count" must be integer, not boolean'),
        ({"text": "", "count": 1.5}, '"count" must be integer'),
        ({"text": "", "kind": "c"}, "\"kind\" must be one of 'a', 'b'"),
        ({"text": "", "tags": ["x", 5]}, 'item 1 of "tags" must be string'),
        ({"text": "", "either": 5}, '"either" must be string or null'),
        ({"text": "", "inner": {}}, '"x" is missing in "inner"'),
        ({"text": "", "inner": {"x": 1, "y": 2}}, '"y" is not known in "inner"'),
    ],
)
def test_what_does_not_fit_is_named(value: Any, said: str) -> None:
    assert said in (misfit(value, SCHEMA) or "")


def test_a_schema_that_goes_on_for_ever_ends() -> None:
    schema: dict[str, Any] = {"type": "array"}
    schema["items"] = schema
    value: list[Any] = []
    for _ in range(200):
        value = [value]
    assert "nested more than 50" in (misfit(value, schema) or "")
