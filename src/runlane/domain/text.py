"""Text and JSON at the edges: values that a database would reject are found here, not in its driver.

Postgres rejects NUL in text, and neither UTF-8 nor orjson can represent a lone surrogate. Input of a caller is rejected
with its location; output of a task is repaired, because losing finished work over one character would be worse than
replacing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson

from runlane.errors import InvalidInput

_REPLACEMENT = "\ufffd"
# Space for the braces and the number of omitted fields.
_ROOM_FOR_THE_REST = 40


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `one` for 1, else the plural, which is `one` with an s unless given."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def shown(value: object) -> str:
    """Return a value as an error message quotes it."""
    return repr(value)[:100]


def check_text(value: str, what: str, max_length: int) -> str:
    """Return the value if it can be stored unchanged."""
    if not isinstance(cast("object", value), str):
        raise InvalidInput(f"{what} must be a string, not {shown(value)}.")
    if not value:
        raise InvalidInput(f"{what} is empty. Leave it out or give it a value.")
    if len(value) > max_length:
        raise InvalidInput(f"{what} has {len(value)} characters; at most {max_length} are allowed.")
    if "\x00" in value:
        raise InvalidInput(f"{what} contains a NUL character, which cannot be stored. Remove it.")
    if _has_surrogate(value):
        raise InvalidInput(f"{what} contains half of a surrogate pair, which is not text. Remove it.")
    return value


def clean_text(value: str, max_length: int | None = None) -> str:
    """Return the value with everything replaced that cannot be stored."""
    if max_length is not None and len(value) > max_length:
        value = value[: max_length - 1] + "…"
    if "\x00" in value:
        value = value.replace("\x00", _REPLACEMENT)
    if _has_surrogate(value):
        value = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def dump_json(value: Any) -> str:
    """Serialize a value that a task returned; what JSON cannot represent is repaired or replaced by its string."""
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError, RecursionError):
        return orjson.dumps(_repaired(value, 0), default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def dump_fields(fields: Mapping[str, Any], max_length: int) -> str:
    """Serialize named values to at most this many characters; a value that is too long is truncated."""
    text = dump_json(fields)
    if len(text) <= max_length:
        return text
    room = max_length - _ROOM_FOR_THE_REST
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        shown = dump_json(value)
        size = len(dump_json(name)) + len(shown) + 2
        if size > room:
            # In a string, each quote or backslash takes two characters.
            left = (room - len(dump_json(name)) - 4) // 2
            if left < 1:
                break
            value = clean_text(shown, left)  # noqa: PLW2901 - the truncated value
            size = room
        kept[name] = value
        room -= size
    if len(kept) < len(fields):
        kept["…"] = f"{len(fields) - len(kept)} more"
    return dump_json(kept)


def utf8_size(text: str) -> int:
    """Return the size of a string in bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def load_json(text: str) -> Any:
    """Parse JSON that we stored."""
    return orjson.loads(text)


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if isinstance(value, (set, frozenset)):
        return sorted(cast("set[Any]", value), key=repr)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    raise TypeError(
        f"{type(value).__name__} is not JSON. Return dicts, lists, text, numbers, booleans, None, "
        "dates, dataclasses or pydantic models."
    )


def _repaired(value: Any, depth: int) -> Any:
    if depth > 200:
        raise TypeError("The value is nested more than 200 levels deep, or contains itself. Return a flatter value.")
    match value:
        case str():
            return clean_text(value) if _has_surrogate(value) else value
        case int() if not isinstance(value, bool) and not -(2**63) <= value < 2**64:
            return str(value)
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return {_repaired(key, depth + 1): _repaired(item, depth + 1) for key, item in pairs}
        case list() | tuple():
            return [_repaired(item, depth + 1) for item in cast("list[Any]", value)]
        case _:
            return value


def _has_surrogate(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
