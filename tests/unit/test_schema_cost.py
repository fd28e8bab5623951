"""No schema and no value make a check run endlessly, and ordinary ones are not refused."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.templates.json_schema import check_schema, misfit
from runlane.templates.json_schema_cost import ValueSize, size_of, step_limit

REFUSED = "the arguments cannot be validated in reasonable time"


def doubling(levels: int, refer: str = "#/$defs/d{}", name: str | None = None) -> dict[str, Any]:
    """Each level refers to the next one twice."""
    parts: dict[str, Any] = {"d0": {"type": "object"}}
    for level in range(levels):
        twice = [{"$ref": refer.format(level)}] * 2
        parts[f"d{level + 1}"] = {"allOf": twice}
    if name is not None:
        for key, part in parts.items():
            part["$anchor"] = key
    return {"$ref": refer.format(levels), "$defs": parts}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("schema", [doubling(60), doubling(60, "#d{}", "anchor")], ids=["pointers", "anchors"])
def test_references_that_multiply_are_refused(schema: dict[str, Any]) -> None:
    assert (misfit({}, schema) or "").startswith(REFUSED)
    assert "references multiply" in (check_schema(schema) or "")


@pytest.mark.parametrize("word", ["properties", "patternProperties"])
def test_recursion_that_multiplies_with_the_depth_of_the_value_is_refused(word: str) -> None:
    again = {word: {"a": {"$ref": "#"}}}
    schema = {"allOf": [again, again]}
    assert check_schema(schema) is None
    assert misfit(nested(5), schema) is None
    assert (misfit(nested(60), schema) or "").startswith(REFUSED)


def test_a_product_of_schema_and_value_is_refused() -> None:
    schema = {"allOf": [{"contains": {"const": -1}, "minContains": 0}] * 3000}
    assert misfit([1, 2, 3], schema) is None
    assert (misfit(list(range(3000)), schema) or "").startswith(REFUSED)


def test_a_pattern_gets_fewer_steps_the_more_strings_there_are() -> None:
    schema = {"items": {"anyOf": [{"pattern": "^(?:(?=a)a|a(?=a))+b$"}, True]}}
    assert misfit(["a" * 40 + str(number) for number in range(3000)], schema) == (
        "the arguments cannot be matched against its pattern in reasonable time"
    )
    limits = [step_limit(b'{"pattern": ""}', ValueSize(texts, texts, 1)) for texts in (1, 100, 1000, 10_000, 100_000)]
    assert limits == [100_000, 100_000, 10_000, 1000, 100]


def test_keys_count_as_strings_too() -> None:
    assert size_of({"a": "b", "c": [1, {"d": "e"}]}, 10) == ValueSize(6, 5, 3)
    assert size_of(nested(11), 10) is None


JSON_VALUE = {
    "anyOf": [
        {"type": ["string", "number", "boolean", "null"]},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "object", "additionalProperties": {"$ref": "#"}},
    ]
}
ROW = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}, "tags": {"items": {"type": "string"}}},
    "required": ["id"],
}
VARIANTS = {
    "items": {
        "oneOf": [
            {"properties": {"kind": {"const": f"k{number}"}, "id": {"type": "integer"}}, "required": ["kind"]}
            for number in range(30)
        ]
    }
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
        }
    },
}


def tree(depth: int) -> dict[str, Any]:
    return {"name": "n", "children": [tree(depth - 1) for _ in range(3)] if depth else []}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (JSON_VALUE, {"a": [{"b": [1, {"c": ["d"]}]}] * 50}),
        ({"type": "array", "items": ROW}, [{"id": n, "name": "x", "tags": ["a", "b"]} for n in range(50_000)]),
        (VARIANTS, [{"kind": f"k{n % 30}", "id": n} for n in range(5000)]),
        (TREE, tree(7)),
    ],
    ids=["any JSON", "many rows", "variants", "tree"],
)
def test_ordinary_schemas_and_large_values_are_checked(schema: dict[str, Any], value: Any) -> None:
    assert check_schema(schema) is None
    assert misfit(value, schema) is None
