"""Access rules: which resources a user may use, as the handlers of an auth module return it.

A rule is a disjunction of JSON documents. A resource is visible if its metadata contains one of them, so one condition
on both databases applies any rule. An unsupported filter is an error; it never becomes a rule that allows more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, cast

from runlane.domain.json_containment import contains
from runlane.domain.text import dump_json

MAX_ALTERNATIVES: Final = 100
_MAX_DEPTH: Final = 10

Document = Mapping[str, Any]


class InvalidRule(ValueError):
    """A handler returned a filter that is not supported."""


@dataclass(frozen=True, slots=True)
class AccessRule:
    """The metadata that a visible resource has: at least one of these documents."""

    alternatives: tuple[Document, ...]

    @property
    def text(self) -> str:
        """The rule as the parameter of a statement's condition."""
        return dump_json(list(self.alternatives))

    def allows(self, metadata: Any) -> bool:
        """Return whether the rule allows a resource with this metadata, as the statements do."""
        return any(contains(metadata, document) for document in self.alternatives)

    def __and__(self, other: AccessRule) -> AccessRule:
        """Return the rule that allows what both allow."""
        return AccessRule(_both(self.alternatives, other.alternatives))

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> AccessRule | None:
        """Return the rule of a filter; None for an empty one, which allows everything."""
        return cls(_alternatives(given, 0)) if given else None


def rule_text(rule: AccessRule | None) -> str | None:
    """Return the parameter of a statement for a rule or for none."""
    return None if rule is None else rule.text


def _alternatives(given: Mapping[str, Any], depth: int) -> tuple[Document, ...]:
    if depth > _MAX_DEPTH:
        raise InvalidRule(f"a filter must not be nested more than {_MAX_DEPTH} times")
    found: tuple[Document, ...] = ({},)
    for field, wanted in given.items():
        if field == "$and":
            for part in _parts(wanted, field):
                found = _both(found, _alternatives(part, depth + 1))
        elif field == "$or":
            parts = [_alternatives(part, depth + 1) for part in _parts(wanted, field)]
            found = _both(found, tuple(document for alternatives in parts for document in alternatives))
        elif field.startswith("$"):
            raise InvalidRule(f"the operator {field!r} does not exist")
        else:
            found = _both(found, ({field: _condition(field, wanted)},))
    return found


def _parts(given: Any, operator: str) -> list[Mapping[str, Any]]:
    parts = cast("list[Any]", given) if isinstance(given, list) else []
    if not parts or not all(isinstance(part, Mapping) and bool(cast("Any", part)) for part in parts):
        raise InvalidRule(f"{operator!r} must be a list of filters that are not empty")
    return parts


def _condition(field: str, wanted: Any) -> Any:
    """Return the value that the metadata must contain, or the items that a list in the metadata must contain."""
    if not isinstance(wanted, Mapping):
        return _scalar(field, wanted)
    operators = cast("Mapping[str, Any]", wanted)
    if len(operators) != 1:
        raise InvalidRule(f"the field {field!r} must have one operator")
    ((operator, value),) = operators.items()
    if operator == "$eq":
        return _scalar(field, value)
    if operator == "$contains":
        values = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else [value]
        return [_scalar(field, item) for item in values]
    raise InvalidRule(f"the operator {operator!r} of the field {field!r} does not exist")


def _scalar(field: str, value: Any) -> Any:
    if value is None or not isinstance(value, str | int | float | bool):
        raise InvalidRule(f"the field {field!r} must be compared with a string, a number or a boolean")
    return value


def _both(first: Iterable[Document], second: Iterable[Document]) -> tuple[Document, ...]:
    # Cached by the text of the rules, because a request that names many resources combines the same rule many times.
    found: dict[str, Document] = {}
    for one, other in product(first, second):
        merged = _merged(one, other)
        if merged is not None:
            found.setdefault(dump_json(dict(sorted(merged.items()))), merged)
    if len(found) > MAX_ALTERNATIVES:
        raise InvalidRule(f"a filter must not have more than {MAX_ALTERNATIVES} alternatives")
    return tuple(found.values())


def _merged(one: Document, other: Document) -> Document | None:
    """Return a document that contains both; None if no metadata can."""
    merged = dict(one)
    for field, value in other.items():
        known = merged.get(field)
        if field not in merged:
            merged[field] = value
        elif isinstance(known, list) and isinstance(value, list):
            listed = cast("list[Any]", known)
            merged[field] = [*listed, *(item for item in cast("list[Any]", value) if not _holds(listed, item))]
        elif known != value or isinstance(known, bool) is not isinstance(value, bool):
            return None
    return merged


def _holds(listed: Iterable[Any], item: Any) -> bool:
    """Return whether a list has this value; true is not 1."""
    return any(known == item and isinstance(known, bool) is isinstance(item, bool) for known in listed)
