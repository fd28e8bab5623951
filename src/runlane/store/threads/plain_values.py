"""Stored values of graphs as plain JSON values, without importing the classes of the graph.

LangGraph stores msgpack in which an object is an extension: its module, its class, and the arguments that rebuild it.
Servers do not have the code of graphs, and importing a class that a row names would execute it. Each extension
therefore becomes its JSON form: the fields of a model, the items of a set, the text of a date.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, Final, cast
from uuid import UUID

import orjson

from runlane.store.threads.checkpoints import Encoded

# The codes of LangGraph's extensions. Each holds module, name, arguments, and for a method its name.
_ARRAY: Final = 6
_DELTA_SNAPSHOT: Final = 7
_HIDDEN: Final = "**********"
# Values that an installation has encrypted or pickled cannot be shown.
_OPAQUE: Final = "opaque_encoding"

Decode = Callable[[Any], Any]


def plain_value(encoded: Encoded) -> Any:
    """Return a stored value as JSON shows it."""
    encoding, data = encoded
    match encoding:
        case "null" | "empty":
            return None
        case "bytes" | "bytearray":
            return b64encode(data).decode()
        case "json":
            return _revived(orjson.loads(data))
        case "msgpack":
            return _unpacked(data)
        case _:
            return {_OPAQUE: encoding}


def _unpacked(data: bytes) -> Any:
    # Imported when a server reads a value, because the package belongs to the extra `langgraph`.
    import ormsgpack

    return _jsonable(ormsgpack.unpackb(data, ext_hook=_extension, option=ormsgpack.OPT_NON_STR_KEYS))


def _extension(code: int, data: bytes) -> Any:
    content = _unpacked(data)
    if code == _DELTA_SNAPSHOT:
        return content
    if code == _ARRAY:
        dtype, shape, *_ = content
        return {"dtype": dtype, "shape": shape}
    module, name, arguments, *_ = content
    special = _SPECIAL.get((module, name))
    return arguments if special is None else special(arguments)


def _jsonable(value: Any) -> Any:
    """Return a decoded value without bytes, and with keys that are strings."""
    match value:
        case bytes():
            return b64encode(value).decode()
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return {key if isinstance(key, str) else str(key): _jsonable(item) for key, item in pairs}
        case list() | tuple():
            return [_jsonable(item) for item in cast("list[Any]", value)]
        case _:
            return value


def _revived(value: Any) -> Any:
    """Return JSON of earlier versions of LangGraph with the arguments of each constructor in its place."""
    match value:
        case {"lc": 1 | 2, "type": "constructor"}:
            described = cast("dict[str, Any]", value)
            return _revived(described.get("kwargs") or described.get("args"))
        case dict():
            return {key: _revived(item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [_revived(item) for item in cast("list[Any]", value)]
        case _:
            return value


def _number(text: str) -> float:
    value = Decimal(text)
    return int(value) if value == value.to_integral_value() else float(value)


def _time(fields: Mapping[str, Any]) -> str:
    return time(fields["hour"], fields["minute"], fields["second"], fields["microsecond"]).isoformat()


def _interrupt(fields: Mapping[str, Any]) -> dict[str, Any]:
    # Fields that newer versions have added are shown when they are set.
    return {name: item for name, item in fields.items() if name == "value" or item is not None}


_SPECIAL: Final[Mapping[tuple[str, str], Decode]] = {
    ("uuid", "UUID"): lambda text: str(UUID(text)),
    ("decimal", "Decimal"): _number,
    ("datetime", "date"): lambda parts: date(*parts).isoformat(),
    ("datetime", "time"): _time,
    ("datetime", "timedelta"): lambda parts: timedelta(*parts).total_seconds(),
    ("pathlib", "PosixPath"): lambda parts: "/".join(parts).replace("//", "/"),
    ("pathlib", "WindowsPath"): "/".join,
    ("re", "compile"): lambda parts: parts[0],
    ("pydantic.types", "SecretStr"): lambda value: _HIDDEN,
    ("pydantic.types", "SecretBytes"): lambda value: _HIDDEN,
    ("langgraph.types", "Interrupt"): _interrupt,
    ("langgraph.types", "Send"): lambda parts: {"node": parts[0], "arg": parts[1]},
}
