"""Example values for a JSON Schema, which prefill forms: a person changes them, so they need not be valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

_MAX_DEPTH: Final = 6
_MAX_FIELDS: Final = 100
_PLAIN: Final[Mapping[str, Any]] = {
    "string": "",
    "integer": 0,
    "number": 0,
    "boolean": False,
    "array": [],
    "object": {},
    "null": None,
}


def example_of(schema: Mapping[str, Any]) -> Any:
    """Return an example. References within the schema are followed; a schema that contains itself ends with null."""
    return _example(schema, cast("Mapping[str, Any]", schema.get("$defs") or {}), 0)


def _example(schema: Mapping[str, Any], known: Mapping[str, Any], depth: int) -> Any:
    for given in ("default", "const", "example"):
        if given in schema:
            return schema[given]
    for listed in ("examples", "enum"):
        if schema.get(listed):
            return schema[listed][0]
    if depth >= _MAX_DEPTH:
        return None
    if "$ref" in schema:
        return _example(known.get(str(schema["$ref"]).rpartition("/")[2]) or {}, known, depth + 1)
    for choice in ("anyOf", "oneOf", "allOf"):
        if schema.get(choice):
            return _example(schema[choice][0], known, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = cast("list[Any]", kind)[0] if kind else None
    if kind == "object" or "properties" in schema:
        fields = list(cast("Mapping[str, Any]", schema.get("properties") or {}).items())[:_MAX_FIELDS]
        return {name: _example(inner, known, depth + 1) for name, inner in fields}
    if kind in ("integer", "number"):
        return schema.get("minimum", 0)
    return _PLAIN.get(str(kind))
