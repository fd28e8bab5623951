"""Estimate the cost of a JSON Schema validation before it begins.

A validation is one call into a library that holds the interpreter lock: it cannot be interrupted, and no other thread
of the process runs meanwhile. A schema of 2 kB whose references double at every level takes hours, and a pattern with
look-around takes milliseconds per string. So the cost is estimated first, and a validation that could take seconds is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

import orjson

# The maximum number of applications of a subschema to a node of a value. Each takes a fraction of a microsecond.
MAX_APPLICATIONS: Final = 5_000_000
# The maximum of steps of all patterns that need backtracking. Each step takes about a tenth of a microsecond.
_MAX_STEPS: Final = 10_000_000
STEPS: Final = 100_000
_STEP_LIMITS: Final = (STEPS, 10_000, 1_000, 100)
_CACHED: Final = 512

_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE: Final = ("not", "if", "then", "else")
_IN_PLACE_TABLES: Final = ("dependentSchemas", "dependencies")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
# At most one of these subschemas applies to a child.
_ONE_TABLE: Final = ("properties",)
_ONE_LISTS: Final = ("prefixItems", "items")
_ONE: Final = ("additionalProperties", "items", "additionalItems")
# All of these subschemas may apply to the same child.
_EVERY_TABLES: Final = ("patternProperties",)
_EVERY: Final = ("contains", "propertyNames", "unevaluatedProperties", "unevaluatedItems")
_REVISITS: Final = ("unevaluatedProperties", "unevaluatedItems")

Schema = Mapping[str, Any]
_EMPTY: Final[Schema] = {}


class ValueSize(NamedTuple):
    """The size of a value: its numbers of nodes, strings (including keys) and levels."""

    nodes: int
    texts: int
    depth: int


class _Node(NamedTuple):
    """A subschema, with the indexes of the subschemas that it applies."""

    in_place: tuple[int, ...]
    one: tuple[int, ...]
    every: tuple[int, ...]
    factor: int


def size_of(value: Any, max_depth: int) -> ValueSize | None:
    """Return the size of a value; None if it is nested more than `max_depth` levels deep."""
    nodes = texts = 0
    level: list[Any] = [value]
    for depth in range(max_depth + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                texts += 1
            elif isinstance(item, Mapping):
                table = cast("Mapping[Any, Any]", item)
                texts += len(table)
                inner += table.values()
            elif isinstance(item, (list, tuple)):
                inner += cast("Sequence[Any]", item)
        nodes += len(level)
        if not inner:
            return ValueSize(nodes, texts, depth)
        level = inner
    return None


def too_costly(schema_text: bytes, size: ValueSize) -> bool:
    """Return whether the validation of a value of this size could take seconds."""
    return size.nodes * applications(schema_text, size.depth) > MAX_APPLICATIONS


def step_limit(schema_text: bytes, size: ValueSize) -> int:
    """Return how many steps one pattern may take on one string, so that the total stays within the limit."""
    matches = max(1, size.texts) * max(1, schema_text.count(b'"pattern'))
    return next((limit for limit in _STEP_LIMITS if limit * matches <= _MAX_STEPS), _STEP_LIMITS[-1])


@lru_cache(_CACHED)
def applications(schema_text: bytes, depth: int) -> int:
    """Return the maximum number of subschemas that are applied on the path to one node at this depth, up to a limit."""
    nodes, order = _graph(orjson.loads(schema_text))
    below = [0] * len(nodes)
    for _ in range(depth + 1):
        here = [0] * len(nodes)
        for number in order:
            node = nodes[number]
            total = 1 + node.factor * sum(here[other] for other in node.in_place)
            total += max((below[other] for other in node.one), default=0) + sum(below[other] for other in node.every)
            here[number] = min(total, MAX_APPLICATIONS + 1)
        if here == below or here[0] > MAX_APPLICATIONS:
            return here[0]
        below = here
    return below[0]


def _graph(root: Any) -> tuple[list[_Node], list[int]]:
    """Return the subschemas reachable from the root, and their indexes, each after those it applies in place."""
    numbers: dict[int, int] = {}
    found: list[Any] = []
    anchors = _anchors(root)

    def number_of(schema: Any) -> int:
        if id(schema) not in numbers:
            numbers[id(schema)] = len(found)
            found.append(schema)
        return numbers[id(schema)]

    number_of(root)
    nodes: list[_Node] = []
    # The list grows during the iteration.
    for schema in found:
        table = cast("Schema", schema) if isinstance(schema, Mapping) else _EMPTY
        references = [_resolved(str(table[word]), root, anchors) for word in _REFERENCES if word in table]
        nodes.append(
            _Node(
                tuple(map(number_of, [*_subschemas(table, _IN_PLACE_LISTS, _IN_PLACE, _IN_PLACE_TABLES), *references])),
                tuple(map(number_of, _subschemas(table, _ONE_LISTS, _ONE, _ONE_TABLE))),
                tuple(map(number_of, _subschemas(table, (), _EVERY, _EVERY_TABLES))),
                2 if any(word in table for word in _REVISITS) else 1,
            )
        )
    return nodes, _in_order(nodes)


def _subschemas(
    table: Schema, lists: Sequence[str], single: Sequence[str], tables: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    for word in lists:
        if isinstance(table.get(word), list):
            yield from (item for item in table[word] if isinstance(item, Mapping))
    for word in single:
        if isinstance(table.get(word), Mapping):
            yield table[word]
    for word in tables:
        if isinstance(table.get(word), Mapping):
            yield from (item for item in table[word].values() if isinstance(item, Mapping))


def _in_order(nodes: Sequence[_Node]) -> list[int]:
    """Return the indexes of nodes, each after the nodes that it applies in place.

    The library follows a cycle of these once.
    """
    order: list[int] = []
    seen: set[int] = set()
    for start in range(len(nodes)):
        stack = [(start, False)]
        while stack:
            number, done = stack.pop()
            if done:
                order.append(number)
            elif number not in seen:
                seen.add(number)
                stack.append((number, True))
                stack += [(other, False) for other in nodes[number].in_place]
    return order


def _anchors(root: Any) -> dict[str, Any]:
    """Return the named parts of a schema: anchors as #name, and parts with an $id by that id."""
    found: dict[str, Any] = {}
    level: list[Any] = [root]
    while level:
        item = level.pop()
        if isinstance(item, Mapping):
            table = cast("Mapping[str, Any]", item)
            found |= {f"#{table[word]}": table for word in _ANCHORS if isinstance(table.get(word), str)}
            if isinstance(table.get("$id"), str):
                found[str(table["$id"]).rstrip("#")] = table
            level += table.values()
        elif isinstance(item, list):
            level += cast("list[Any]", item)
    return found


def _resolved(reference: str, root: Any, anchors: Mapping[str, Any]) -> Any:
    """Return the part of the schema to which a reference points; an empty schema if the library has it built in."""
    address, _, pointer = reference.partition("#")
    if f"#{pointer}" in anchors and not address:
        return anchors[f"#{pointer}"]
    target: Any = root
    if address:
        # For a relative URL, this is the part whose $id ends with it.
        target = next((part for name, part in anchors.items() if name.endswith(address.lstrip("./"))), _EMPTY)
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~").replace("%25", "%")
        if isinstance(target, Mapping):
            target = cast("Mapping[str, Any]", target).get(name)
        elif isinstance(target, list) and name.isdigit() and int(name) < len(cast("list[Any]", target)):
            target = cast("list[Any]", target)[int(name)]
        else:
            return _EMPTY
    return _EMPTY if target is None else target
