"""Values of graphs as JSON: messages, interrupts, commands and the objects of users.

A value that has no JSON form becomes its string, because one field of the state must not fail the run.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, cast

import orjson
from langgraph.types import Send

from runlane.domain.text import clean_text, dump_json

_MAX_DEPTH: Final = 200
_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def to_json(value: Any) -> str:
    """Return a value of a graph as JSON."""
    try:
        return orjson.dumps(value, default=_plain, option=_OPTIONS).decode()
    except (TypeError, ValueError, RecursionError):
        # A string with half of a surrogate pair, a very large number, or a key that is not plain.
        return dump_json(_repaired(value, 0))


def _plain(value: Any) -> Any:
    """Return an object as simpler values."""
    for name in ("model_dump", "_asdict", "to_dict"):
        method = getattr(value, name, None)
        if callable(method) and not isinstance(value, type):
            try:
                return method()
            except Exception:  # noqa: BLE001, S112 - a method of a user's class; the next form is tried
                continue
    match value:
        case Send():
            return {"node": value.node, "arg": value.arg}
        case BaseException():
            return {"error": type(value).__name__, "message": str(value)}
        case set() | frozenset() | deque() | tuple():
            return list(cast("set[Any]", value))
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return dict(cast("Mapping[Any, Any]", value))
        case _:
            return _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a __str__ of a user
        return f"<{type(value).__name__}>"


def _repaired(value: Any, depth: int) -> Any:
    """Return a value of plain types that JSON can represent."""
    if depth > _MAX_DEPTH:
        return "…"
    match value:
        case None | bool() | float():
            return value
        case str():
            return clean_text(value)
        case Enum():
            return _repaired(value.value, depth + 1)
        case int():
            return value if -(2**63) <= value < 2**64 else str(value)
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return {clean_text(_text(key)): _repaired(item, depth + 1) for key, item in pairs}
        case list() | tuple():
            return [_repaired(item, depth + 1) for item in cast("list[Any]", value)]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {item.name: _repaired(getattr(value, item.name), depth + 1) for item in fields(value)}
        case _:
            return _repaired(_plain(value), depth + 1)
