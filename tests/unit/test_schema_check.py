"""Values are checked against JSON Schema without fetching anything, and what does not fit is described."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from runlane.templates.json_schema import MAX_DEPTH, check_schema, cut, misfit

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "rate": {"type": "number", "minimum": 0},
        "on": {"type": "boolean"},
        "kind": {"enum": ["a", "b"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "either": {"type": ["string", "null"]},
        "inner": {"type": "object", "required": ["x"], "additionalProperties": False, "properties": {"x": {}}},
        "mail": {"type": "string", "format": "email"},
        "code": {"type": "string", "pattern": "^[a-z]+$"},
        "form": {"anyOf": [{"type": "string"}, {"properties": {"deep": {"type": "integer"}}, "type": "object"}]},
    },
    "required": ["text"],
}


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"count": 3, "rate": 1, "on": False, "kind": "b"},
        {"count": 3.0, "rate": 0.5},
        {"tags": [], "either": None},
        {"tags": ["x"], "either": "y", "inner": {"x": 1}},
        {"unknown": 1, "mail": "a@b.example", "code": "abc"},
    ],
)
def test_valid_values_are_accepted(more: dict[str, Any]) -> None:
    assert misfit({"text": "t", **more}, SCHEMA) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, '"text" is missing in the arguments'),
        ([], "the arguments must be object, not array"),
        ({"text": 5}, '"text" must be string, not number'),
        ({"text": "", "count": True}, '"count" must be integer, not boolean'),
        ({"text": "", "count": 1.5}, '"count" must be integer'),
        ({"text": "", "rate": -1}, '"rate": it is less than the minimum of 0'),
        ({"text": "", "kind": "c"}, "\"kind\" must be one of 'a', 'b'"),
        ({"text": "", "tags": ["x", 5]}, 'item 1 of "tags" must be string'),
        ({"text": "", "either": 5}, '"either" must be string or null'),
        ({"text": "", "inner": {}}, '"x" is missing in "inner"'),
        ({"text": "", "inner": {"x": 1, "y": 2}}, '"y" is unknown in "inner"'),
        ({"text": "", "mail": "unknown"}, '"mail": it is not a "email"'),
        ({"text": "", "code": "A"}, '"code": it does not match'),
        ({"text": "", "form": {"deep": "x"}}, '"form" does not match any of the allowed forms; "deep" in "form"'),
        ({"text": object()}, "the arguments are not JSON"),
    ],
)
def test_invalid_values_are_named(value: Any, expected: str) -> None:
    assert expected in (misfit(value, SCHEMA) or "")


def test_a_misspelled_key_is_reported() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"query": {}}, "additionalProperties": False}
    assert misfit({"qurey": 1}, schema) == '"qurey" (did you mean "query"?) is unknown in the arguments'


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {"type": "array", "items": {"$ref": "#"}}
    assert misfit(nested(MAX_DEPTH - 2), schema) is None
    assert f"nested more than {MAX_DEPTH}" in (misfit(nested(MAX_DEPTH + 1), schema) or "")


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "unheard-of"}, '"type" is not a type'),
        ({"properties": {"a": {"type": "strin"}}}, '"type" in "a" in "properties" is not a type'),
        ({"properties": 5}, '"properties"'),
        ({"pattern": "("}, '"pattern" is not a supported pattern'),
        ({"pattern": "(a{1000}){1000}{1000}"}, '"pattern" is not a supported pattern'),
        ({"$ref": "#/$defs/nothing"}, "a $ref cannot be resolved"),
        ({"$ref": "file:///etc/passwd"}, "a $ref points outside of it"),
        ({"$id": "http://a.example/b", "$ref": "c"}, "a $ref points outside of it"),
        ({"$schema": "http://nowhere.example/schema"}, "$ref cannot be resolved"),
        ({"description": "x" * 300_000}, "at most"),
        ({"x": nested(200)}, "levels deep"),
    ],
)
def test_an_invalid_schema_is_reported(schema: dict[str, Any], expected: str) -> None:
    message = check_schema(schema)
    assert expected in (message or "")
    assert "cannot be validated" in (misfit({}, schema) or "")


SCHEMAS: list[Any] = [
    {},
    True,
    SCHEMA,
    {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}]},
    {"$defs": {"a": {"properties": {"a": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/a"},
    {"format": "not-known", "x-own": 1},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_valid_schemas_are_accepted(schema: Any) -> None:
    assert check_schema(schema) is None


def test_a_remote_reference_is_not_fetched() -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/schema.json"
        for schema in ({"$ref": url}, {"$dynamicRef": url}, {"$schema": url}, {"properties": {"a": {"$ref": url}}}):
            assert check_schema(schema) is not None
            assert misfit({"a": 1}, schema) is not None
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert asked == []


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"^(?=(a+)+$)", r"^(a|a)*\1b$", r"(x+x+)+y"])
def test_patterns_that_explode_come_to_an_end(pattern: str) -> None:
    assert misfit({"v": "a" * 5000 + "!"}, {"properties": {"v": {"pattern": pattern}}}) is not None


def test_an_answer_is_cut_to_the_fields_of_its_schema() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "id": {},
            "owner": {"$ref": "#/$defs/user"},
            "all": {"type": "array", "items": {"$ref": "#/$defs/user"}},
            "open": {"properties": {"a": {}}, "additionalProperties": True},
            "any": {"anyOf": [{"properties": {"a": {}}}, {}]},
            "free": {},
        },
        "$defs": {"user": {"properties": {"name": {}, "boss": {"$ref": "#/$defs/user"}}}},
    }
    user = {"name": "n", "secret": 1, "boss": {"name": "b", "secret": 2}}
    kept = {"name": "n", "boss": {"name": "b"}}
    value = {"id": 1, "owner": user, "all": [user, 5], "open": {"b": 1}, "any": {"b": 1}, "free": {"b": 1}, "more": 1}
    assert cut(value, schema) == {
        "id": 1,
        "owner": kept,
        "all": [kept, 5],
        "open": {"b": 1},
        "any": {"b": 1},
        "free": {"b": 1},
    }


@pytest.mark.parametrize("target", ["#/$defs/x", "#", "http://x.example/", "#/$defs/a/b/c", "#x"])
def test_cutting_by_references_that_lead_nowhere_ends(target: str) -> None:
    schema = {"$ref": target, "$defs": {"x": {"$ref": "#/$defs/x"}}}
    assert cut({"a": 1}, schema) == {"a": 1}
