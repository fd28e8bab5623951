"""Containment of JSON as Postgres defines it for `@>`, for SQLite, which has no such operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from runlane.domain.text import load_json


def text_contains(whole: str | None, part: str | None) -> bool | None:
    """Return whether one JSON text contains another; None if one of them is null."""
    if whole is None or part is None:
        return None
    return contains(load_json(whole), load_json(part))


def text_contains_any(whole: str | None, parts: str | None) -> bool | None:
    """Return whether a JSON text contains one of the values of a JSON list; None if one of them is null."""
    if whole is None or parts is None:
        return None
    value = load_json(whole)
    return any(contains(value, part) for part in load_json(parts))


def contains(whole: Any, part: Any) -> bool:
    """Return whether a value contains another: objects by key, lists by element, anything else if it is equal."""
    if isinstance(part, Mapping):
        if not isinstance(whole, Mapping):
            return False
        pairs = cast("Mapping[str, Any]", part).items()
        mine = cast("Mapping[str, Any]", whole)
        return all(key in mine and contains(mine[key], value) for key, value in pairs)
    if isinstance(part, list):
        if not isinstance(whole, list):
            return False
        mine = cast("list[Any]", whole)
        return all(any(contains(one, item) for one in mine) for item in cast("list[Any]", part))
    return (type(whole) is type(part) and whole == part) or _equal_numbers(whole, part)


def _equal_numbers(whole: Any, part: Any) -> bool:
    numbers = isinstance(whole, int | float) and isinstance(part, int | float)
    return numbers and not isinstance(whole, bool) and not isinstance(part, bool) and whole == part
