"""Definitions as JSON: a directory with a folder for each kind, or a request body.

The layout is `orchestrations/`, `agents/`, `tools/`, `mcp_servers/`, `schedules/` and `triggers/`, each with files that
contain one definition or a list of them. Sizes are checked before the content is parsed, and every string must be
storable.
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
    "schedules": "schedule",
    "triggers": "trigger",
}
MAX_FILE_BYTES: Final = 8 * 1024 * 1024
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_DEFINITIONS: Final = 10_000
MAX_DEPTH: Final = 64
# JSON parsers disagree about larger numbers, and orjson cannot serialize them.
_MAX_INTEGER: Final = 2**63 - 1
_SHOWN_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class DefinitionSource:
    """A definition before parsing, and its file."""

    kind: Kind
    body: dict[str, Any]
    file: str | None = None

    @property
    def location(self) -> Location:
        """The location of the definition, with the name that it contains."""
        name = self.body.get("id") if self.kind in ("orchestration", "agent", "schedule") else self.body.get("name")
        return Location(self.file, self.kind, clean_text(name, _SHOWN_CHARACTERS) if isinstance(name, str) else None)


def read_directory(directory: Path, problems: Problems) -> list[DefinitionSource]:
    """Return every definition in the files of the directory, in a stable order."""
    if not directory.is_dir():
        problems.error(
            Location(str(directory)),
            "The folder does not exist. Name it with --dir or RUNLANE_DEFINITIONS_DIR; it contains the folders "
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
            problems.error(Location(name), f"The files have more than {MAX_BYTES} bytes in total. Split the directory.")
            break
        if text is not None:
            items += read_text(text, kind, name, problems)
    if len(items) > MAX_DEFINITIONS:
        problems.error(
            Location(str(directory)), f"There are {len(items)} definitions; at most {MAX_DEFINITIONS} are allowed."
        )
    return items


def read_text(text: bytes, kind: Kind, file: str, problems: Problems) -> list[DefinitionSource]:
    """Return the definitions in the content of a file."""
    location = Location(file)
    value = _load(text, location, problems)
    if value is None:
        return []
    bodies = cast("list[Any]", value) if isinstance(value, list) else [value]
    return list(read_bodies(bodies, kind, file, problems))


def read_bodies(bodies: Iterable[Any], kind: Kind, file: str | None, problems: Problems) -> Iterator[DefinitionSource]:
    """Yield the bodies that are objects and can be stored."""
    for position, body in enumerate(bodies):
        if not isinstance(body, dict):
            problems.error(
                Location(file, kind), f"Entry {position + 1} is {_kind(body)}. A definition must be an object."
            )
            continue
        item = DefinitionSource(
            kind, {key: value for key, value in cast("dict[str, Any]", body).items() if key != "$schema"}, file
        )
        problem = unstorable(item.body)
        if problem is None:
            yield item
        else:
            problems.error(item.location, problem)


def unstorable(value: Any) -> str | None:
    """Return why a JSON value cannot be stored; None if it can."""
    waiting: list[tuple[Any, int]] = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            return f"It is nested more than {MAX_DEPTH} levels deep. Make it flatter."
        if isinstance(item, str):
            problem = _string_problem(item)
        elif isinstance(item, dict):
            table = cast("dict[Any, Any]", item)
            problem = next((found for key in table if (found := _string_problem(str(key)))), None)
            waiting += ((inner, depth + 1) for inner in table.values())
        elif isinstance(item, list):
            problem = None
            waiting += ((inner, depth + 1) for inner in cast("list[Any]", item))
        elif isinstance(item, int) and abs(item) > _MAX_INTEGER:
            problem = f"A number of {item.bit_length()} bits is too large. Write it as a string."
        elif isinstance(item, float) and not math.isfinite(item):
            problem = "A number is not finite, which JSON cannot represent. Write it as a string."
        else:
            problem = None
        if problem is not None:
            return problem
    return None


def _string_problem(text: str) -> str | None:
    if "\x00" in text:
        return f"The string {text[:30]!r} contains a NUL character, which cannot be stored. Remove it."
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"The string {text[:30]!r} contains half of a surrogate pair, which is not valid text. Remove it."
    return None


def _files(directory: Path, problems: Problems) -> Iterator[tuple[Path, Kind]]:
    for folder in sorted(directory.iterdir()):
        if folder.name.startswith(".") or not folder.is_dir():
            if folder.suffix == ".json":
                problems.warn(
                    Location(folder.name),
                    f"This file is ignored. Move it into one of the folders {', '.join(FOLDERS)}.",
                )
            continue
        kind = FOLDERS.get(folder.name)
        if kind is None:
            problems.warn(
                Location(f"{folder.name}/"),
                f"This folder is ignored{near(folder.name, FOLDERS)}. Folders: {', '.join(FOLDERS)}.",
            )
            continue
        for path in sorted(folder.iterdir()):
            if path.name.startswith("."):
                continue
            if path.is_dir():
                problems.warn(Location(f"{folder.name}/{path.name}/"), "Nested folders are ignored.")
            elif path.suffix == ".json":
                yield path, kind


def _read(path: Path, name: str, problems: Problems) -> bytes | None:
    try:
        if not path.is_file():
            problems.error(Location(name), "This is not a file. Remove the link, or make it point to a file.")
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


class _DuplicateKey(Exception):
    """An object contains a key twice, which JSON parsers treat differently."""


def _load(text: bytes, location: Location, problems: Problems) -> Any:
    if not text.strip():
        problems.error(location, "The file is empty. Write one definition, or a list of them.")
        return None
    try:
        orjson.loads(text)
        return json.loads(text, object_pairs_hook=_unique_keys)
    except orjson.JSONDecodeError as error:
        problems.error(location, f"Line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}.")
    except _DuplicateKey as error:
        problems.error(location, f'An object has the key "{error}" twice. Keep one of them.')
    except RecursionError:
        problems.error(location, f"It is nested more than {MAX_DEPTH} levels deep. Make it flatter.")
    return None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        raise _DuplicateKey(next(key for key, _ in pairs if key in seen or seen.add(key)))
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
