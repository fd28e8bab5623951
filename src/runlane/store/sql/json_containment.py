"""Containment of JSON as Postgres defines it for `@>`, for SQLite, which has no such operator."""

from __future__ import annotations

from runlane.domain.json_containment import contains
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
