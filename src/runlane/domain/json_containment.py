"""Containment of JSON as Postgres defines it for `@>`: objects by key, lists by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


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
