"""JSON that a command reads: from an option, a file or stdin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import orjson

from runlane.errors import InvalidInput, InvalidRequest

MAX_FILE_BYTES: Final = 64 * 1024 * 1024


def read_object(given: str | None, option: str, content: str) -> dict[str, Any]:
    """Return the JSON object of an option; `@FILE` reads a file, `-` reads stdin."""
    if given is None:
        return {}
    value, text, where = _read_option(given, option)
    if not isinstance(value, dict):
        raise InvalidInput(f"{where} must be an object with {content}, not {text[:60]!r}.")
    return value  # pyright: ignore[reportUnknownVariableType]


def read_value(given: str, option: str) -> Any:
    """Return the JSON value of an option; `@FILE` reads a file, `-` reads stdin."""
    return _read_option(given, option)[0]


def _read_option(given: str, option: str) -> tuple[Any, str, str]:
    if given == "-":
        text, where = sys.stdin.read(), "stdin"
    elif given.startswith("@"):
        where = given[1:]
        try:
            text = Path(where).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{option} {given}: {error}. Form: {option} @file.json") from None
    else:
        text, where = given, option
    try:
        return orjson.loads(text), text, where
    except orjson.JSONDecodeError as error:
        raise InvalidInput(
            f'{where} is not JSON: {error}. Give it as {option} \'{{"name": "value"}}\', {option} @file.json, '
            f"or {option} - to read it from stdin."
        ) from None


def read_json_file(file: str, hint: str = "") -> Any:
    """Return the JSON document in a file; `-` reads stdin."""
    text = read_bytes(None if file == "-" else Path(file), MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{file} has more than {MAX_FILE_BYTES} bytes.")
    try:
        return orjson.loads(text.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        location = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"{file} is not JSON ({location}: {error.msg}).{hint}") from None


def read_bytes(file: Path | None, max_bytes: int) -> bytes:
    """Return the beginning of a file, or of stdin."""
    try:
        if file is None:
            return sys.stdin.buffer.read(max_bytes)
        with file.open("rb") as stream:
            return stream.read(max_bytes)
    except OSError as error:
        raise InvalidRequest(f"{file or 'stdin'} cannot be read: {error.strerror or error}.") from None
