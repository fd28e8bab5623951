"""Convert schemas of OpenAPI descriptions to JSON Schema: references resolved, keywords of 3.0 translated.

A recursive schema is cut off where it refers to itself, and the total size is bounded: a few lines of references can
expand to more than fits into memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

MAX_NODES: Final = 5000
MAX_DEPTH: Final = 30
_MAX_HOPS: Final = 20
# Keywords with subschemas: one schema, a list of them, or an object of them.
_ONE: Final = {"items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"}
_MANY: Final = {"allOf", "anyOf", "oneOf", "prefixItems"}
_NAMED: Final = {"properties", "patternProperties"}
# Keywords for people and code generators, or with references that the conversion removes.
_DROPPED: Final = {
    "example", "examples", "xml", "externalDocs", "discriminator", "deprecated", "nullable", "readOnly", "writeOnly",
    "$id", "$schema", "$anchor", "$defs", "definitions", "$dynamicRef", "$dynamicAnchor", "$comment", "$vocabulary",
}  # fmt: skip


class SchemaTooLarge(Exception):
    """A schema is too large for a model."""


class SchemaConverter:
    """Converts the schemas of one operation. `circles` is true if one is recursive, `missing` if a reference cannot be
    resolved."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._nodes = 0
        self.circles = False
        self.missing = False

    def plain(self, schema: Any, *, for_request: bool = False) -> Any:
        """Return the schema without references; `for_request`, without the fields that are read-only."""
        return self._plain(schema, for_request, (), 0)

    def _plain(self, schema: Any, for_request: bool, within: tuple[str, ...], depth: int) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise SchemaTooLarge(f"more than {MAX_NODES} parts or {MAX_DEPTH} levels")
        if not isinstance(schema, Mapping):
            return schema if isinstance(schema, bool) else {}
        table = cast("Mapping[str, Any]", schema)
        target = table.get("$ref")
        if isinstance(target, str):
            if target in within:
                self.circles = True
                return {}
            target_schema = _at(target, self._document)
            self.missing = self.missing or target_schema is None
            found = self._plain(target_schema, for_request, (*within, target), depth + 1)
            beside = {key: value for key, value in table.items() if key in ("description", "default")}
            return {**cast("dict[str, Any]", found), **beside} if isinstance(found, dict) else found
        made = {
            key: self._part(key, value, for_request, within, depth)
            for key, value in table.items()
            if key not in _DROPPED and not key.startswith("x-")
        }
        if for_request:
            _remove_read_only(table, made, self._document)
        return _translate_keywords(table, made)

    def _part(self, key: str, value: Any, for_request: bool, within: tuple[str, ...], depth: int) -> Any:
        if key in _ONE:
            return self._plain(value, for_request, within, depth + 1)
        if key in _MANY and isinstance(value, list):
            return [self._plain(item, for_request, within, depth + 1) for item in cast("list[Any]", value)]
        if key in _NAMED and isinstance(value, Mapping):
            named = cast("Mapping[str, Any]", value)
            return {name: self._plain(item, for_request, within, depth + 1) for name, item in named.items()}
        return value


def local(value: Any, document: Mapping[str, Any]) -> Any:
    """Resolve the references of a value within the document; return None if that is not possible."""
    for _ in range(_MAX_HOPS):
        target = cast("Mapping[str, Any]", value).get("$ref") if isinstance(value, Mapping) else None
        if not isinstance(target, str):
            return cast("Any", value)
        value = _at(target, document)
    return None


def _at(target: str, document: Mapping[str, Any]) -> Any:
    if not target.startswith("#/"):
        return None
    found: Any = document
    for part in target.removeprefix("#/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        found = cast("Mapping[str, Any]", found).get(name) if isinstance(found, Mapping) else None
    return found


def _remove_read_only(table: Mapping[str, Any], made: dict[str, Any], document: Mapping[str, Any]) -> None:
    """Remove the read-only fields."""
    fields = table.get("properties")
    if not isinstance(fields, Mapping):
        return
    removed: set[str] = set()
    for name, raw in cast("Mapping[str, Any]", fields).items():
        found = local(raw, document)
        if isinstance(found, Mapping) and cast("Mapping[str, Any]", found).get("readOnly") is True:
            made["properties"].pop(name, None)
            removed.add(name)
    if removed and isinstance(made.get("required"), list):
        required = cast("list[Any]", made["required"])
        made["required"] = [item for item in required if not isinstance(item, str) or item not in removed]


def _translate_keywords(table: Mapping[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Translate the keywords of 3.0 for null and for exclusive bounds."""
    if table.get("nullable") is True and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
        if isinstance(made.get("enum"), list) and None not in made["enum"]:
            made["enum"] = [*made["enum"], None]
    for word, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(made.get(word), bool):
            exclusive = made.pop(word)
            if exclusive and bound in made:
                made[word] = made.pop(bound)
    return made
