"""Definitions as JSON: a directory with a folder for each kind, or a body that somebody sent.

The layout is `orchestrations/`, `agents/`, `tools/` and `mcp_servers/`, each with files that hold one definition or a
list of them. Sizes are bounded before anything is looked at more closely, and every text must be storable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import orjson

from runlane.definitions.problem import Location, Problems, near
from runlane.definitions.schema.definition import Kind
from runlane.domain.text import clean_text

FOLDERS: Final[dict[str, Kind]] = {
    "orchestrations": "orchestration",
    "agents": "agent",
    "tools": "tool",
    "mcp_servers": "mcp_server",
}
MAX_FILE_BYTES: Final = 8 * 1024 * 1024
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_DEFINITIONS: Final = 10_000
MAX_DEPTH: Final = 64
# Beyond this a number is not the same in every JSON reader, and ours cannot write it.
_MAX_INTEGER: Final = 2**63 - 1
_SHOWN_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class DefinitionSource:
    """A definition that has not been parsed yet, and where it comes from."""

    kind: Kind
    body: dict[str, Any]
    file: str | None = None

    @property
    def place(self) -> Location:
        """Where it is, by the name it claims to have."""
        name = self.body.get("id") if self.kind in ("orchestration", "agent") else self.body.get("name")
        return Location(self.file, self.kind, clean_text(name, _SHOWN_CHARACTERS) if isinstance(name, str) else None)


def read_directory(directory: Path, problems: Problems) -> list[DefinitionSource]:
    """Every definition in the directory's files, in a stable order."""
    if not directory.is_dir():
        problems.error(
            Location(str(directory)),
            "There is no such folder. Name it with --dir or RUNLANE_DEFINITIONS_DIR; it has the folders "
            f"{', '.join(FOLDERS)}.",
        )
        return []
    items: list[DefinitionSource] = []
    size = 0
    for path, kind in _files(directory, problems):
        name = path.relative_to(directory).as_posix()
        text = _read(path, name, problems)
        size += len(text or b"")
        if size > MAX_BYTES:
            problems.error(Location(name), f"The files have more than {MAX_BYTES} bytes in all. Split the directory.")
            break
        if text is not None:
            items += read_text(text, kind, name, problems)
    if len(items) > MAX_DEFINITIONS:
        problems.error(
            Location(str(directory)), f"There are {len(items)} definitions; at most {MAX_DEFINITIONS} may be."
        )
    return items


def read_text(text: bytes, kind: Kind, file: str, problems: Problems) -> list[DefinitionSource]:
    """The definitions in a file's text."""
    place = Location(file)
    value = _load(text, place, problems)
    if value is None:
        return []
    bodies = cast("list[Any]", value) if isinstance(value, list) else [value]
    return list(read_bodies(bodies, kind, file, problems))


def read_bodies(bodies: Iterable[Any], kind: Kind, file: str | None, problems: Problems) -> Iterator[DefinitionSource]:
    """Bodies that may be definitions, if they are objects that can be stored."""
    for position, body in enumerate(bodies):
        if not isinstance(body, dict):
            problems.error(
                Location(file, kind), f"Entry {position + 1} is {_kind(body)}. A definition is an object in braces."
            )
            continue
        item = DefinitionSource(
            kind, {key: value for key, value in cast("dict[str, Any]", body).items() if key != "$schema"}, file
        )
        wrong = unstorable(item.body)
        if wrong is None:
            yield item
        else:
            problems.error(item.place, wrong)


def unstorable(value: Any) -> str | None:
    """Why a JSON value cannot be stored as it is; None if it can."""
    waiting: list[tuple[Any, int]] = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            return f"It is nested more than {MAX_DEPTH} levels deep. Make it flatter."
        if isinstance(item, str):
            wrong = _text_wrong(item)
        elif isinstance(item, dict):
            table = cast("dict[Any, Any]", item)
            wrong = next((told for key in table if (told := _text_wrong(str(key)))), None)
            waiting += ((inner, depth + 1) for inner in table.values())
        elif isinstance(item, list):
            wrong = None
            waiting += ((inner, depth + 1) for inner in cast("list[Any]", item))
        elif isinstance(item, int) and abs(item) > _MAX_INTEGER:
            wrong = f"A number of {item.bit_length()} bits is too large. Write it as text."
        elif isinstance(item, float) and not math.isfinite(item):
            wrong = "A number is not finite, which JSON cannot carry. Write it as text."
        else:
            wrong = None
        if wrong is not None:
            return wrong
    return None


def _text_wrong(text: str) -> str | None:
    if "\x00" in text:
        return f"The text {text[:30]!r} contains a NUL character, which cannot be stored. Remove it."
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"The text {text[:30]!r} contains half of a surrogate pair, which is not text. Remove it."
    return None


def _files(directory: Path, problems: Problems) -> Iterator[tuple[Path, Kind]]:
    for folder in sorted(directory.iterdir()):
        if folder.name.startswith(".") or not folder.is_dir():
            if folder.suffix == ".json":
                problems.warn(
                    Location(folder.name),
                    f"This file is not read. Put it into one of the folders {', '.join(FOLDERS)}.",
                )
            continue
        kind = FOLDERS.get(folder.name)
        if kind is None:
            problems.warn(
                Location(f"{folder.name}/"),
                f"This folder is not read{near(folder.name, FOLDERS)}. Folders: {', '.join(FOLDERS)}.",
            )
            continue
        for path in sorted(folder.iterdir()):
            if path.name.startswith("."):
                continue
            if path.is_dir():
                problems.warn(Location(f"{folder.name}/{path.name}/"), "Folders within folders are not read.")
            elif path.suffix == ".json":
                yield path, kind


def _read(path: Path, name: str, problems: Problems) -> bytes | None:
    try:
        if not path.is_file():
            problems.error(Location(name), "This is no file. Remove the link or make it lead to a file.")
            return None
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        problems.error(Location(name), f"The file cannot be read: {error.strerror or error}.")
        return None
    if len(text) > MAX_FILE_BYTES:
        problems.error(Location(name), f"The file has more than {MAX_FILE_BYTES} bytes. Split it.")
        return None
    return text.removeprefix(b"\xef\xbb\xbf")


class _Twice(Exception):
    """An object names a key twice; what JSON readers make of that differs."""


def _load(text: bytes, place: Location, problems: Problems) -> Any:
    if not text.strip():
        problems.error(place, "The file is empty. Write one definition, or a list of them.")
        return None
    try:
        orjson.loads(text)
        return json.loads(text, object_pairs_hook=_once)
    except orjson.JSONDecodeError as error:
        problems.error(place, f"Line {error.lineno}, column {error.colno}: this is not JSON: {error.msg}.")
    except _Twice as error:
        problems.error(place, f'An object has the key "{error}" twice. Keep one of them.')
    except RecursionError:
        problems.error(place, f"It is nested more than {MAX_DEPTH} levels deep. Make it flatter.")
    return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        raise _Twice(next(key for key, _ in pairs if key in seen or seen.add(key)))
    return table


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "text"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"
