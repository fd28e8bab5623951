"""Schemas of OpenAPI descriptions as plain JSON Schema: references filled in, words of 3.0 put into those of today.

A schema that contains itself is cut where it does, and the whole is bounded: a few lines of references can otherwise
stand for more than fits into memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

MAX_NODES: Final = 5000
MAX_DEPTH: Final = 30
_MAX_HOPS: Final = 20
# Words that describe a schema's own parts: one schema, a list of them, or an object of them.
_ONE: Final = {"items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"}
_MANY: Final = {"allOf", "anyOf", "oneOf", "prefixItems"}
_NAMED: Final = {"properties", "patternProperties"}
# What is for people and code generators only, or refers to something that is not there any more.
_DROPPED: Final = {
    "example", "examples", "xml", "externalDocs", "discriminator", "deprecated", "nullable", "readOnly", "writeOnly",
    "$id", "$schema", "$anchor", "$defs", "definitions", "$dynamicRef", "$dynamicAnchor", "$comment", "$vocabulary",
}  # fmt: skip


class SchemaTooLarge(Exception):
    """A schema is larger than a model should read."""


class SchemaConverter:
    """Turns the schemas of one operation into plain ones. `circles` says whether one contained itself,
    `missing` whether one refers to what is not there."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._nodes = 0
        self.circles = False
        self.missing = False

    def plain(self, schema: Any, *, asked: bool = False) -> Any:
        """The schema without references. With `asked` it is one of a request, which has no fields that only an answer
        has."""
        return self._plain(schema, asked, (), 0)

    def _plain(self, schema: Any, asked: bool, within: tuple[str, ...], depth: int) -> Any:
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
            there = _at(target, self._document)
            self.missing = self.missing or there is None
            found = self._plain(there, asked, (*within, target), depth + 1)
            beside = {key: value for key, value in table.items() if key in ("description", "default")}
            return {**cast("dict[str, Any]", found), **beside} if isinstance(found, dict) else found
        made = {
            key: self._part(key, value, asked, within, depth)
            for key, value in table.items()
            if key not in _DROPPED and not key.startswith("x-")
        }
        if asked:
            _without_answers(table, made, self._document)
        return _of_today(table, made)

    def _part(self, key: str, value: Any, asked: bool, within: tuple[str, ...], depth: int) -> Any:
        if key in _ONE:
            return self._plain(value, asked, within, depth + 1)
        if key in _MANY and isinstance(value, list):
            return [self._plain(item, asked, within, depth + 1) for item in cast("list[Any]", value)]
        if key in _NAMED and isinstance(value, Mapping):
            named = cast("Mapping[str, Any]", value)
            return {name: self._plain(item, asked, within, depth + 1) for name, item in named.items()}
        return value


def local(value: Any, document: Mapping[str, Any]) -> Any:
    """What a value is behind its references within the document; None if they lead nowhere or elsewhere."""
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


def _without_answers(table: Mapping[str, Any], made: dict[str, Any], document: Mapping[str, Any]) -> None:
    """Leave out the fields that only an answer has."""
    fields = table.get("properties")
    if not isinstance(fields, Mapping):
        return
    for name, raw in cast("Mapping[str, Any]", fields).items():
        found = local(raw, document)
        if isinstance(found, Mapping) and cast("Mapping[str, Any]", found).get("readOnly") is True:
            made["properties"].pop(name, None)
            if isinstance(made.get("required"), list):
                made["required"] = [item for item in made["required"] if item != name]


def _of_today(table: Mapping[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """3.0 has words of its own for null and for bounds that do not count."""
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
