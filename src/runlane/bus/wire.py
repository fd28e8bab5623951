"""The wire format of notices, deltas and signals between processes: small JSON arrays.

Over Redis, each message begins with the id of its sender; over Postgres, each payload does. With the id a process
ignores its own messages, which it has delivered locally already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import orjson

from runlane.domain.events import Delta, Notice, StoredEvent

# A notice with more text than this goes without its events; readers fetch them from the database.
MAX_NOTICE_BYTES = 256 * 1024


class CancelSignal(NamedTuple):
    """A run was cancelled."""

    run_id: str


class ReaderJoined(NamedTuple):
    """A reader has joined a run."""

    run_id: str


class WorkReported(NamedTuple):
    """A maintenance service has work."""

    service: str


class Bell(NamedTuple):
    """A lane has a ready run."""

    lane: str


class BellServed(NamedTuple):
    """A worker that was woken for a lane found nothing more to claim."""

    lane: str


class Followed(NamedTuple):
    """Runs that have readers in the sending process."""

    run_ids: tuple[str, ...]


class ProcessJoined(NamedTuple):
    """A process has begun to listen, and has no list of the followed runs yet."""


BusContent = Notice | Delta | CancelSignal | ReaderJoined | WorkReported | Bell | BellServed | Followed | ProcessJoined


class BusMessage(NamedTuple):
    """A decoded message: its sender and its content."""

    origin: str
    content: BusContent


def encode(content: BusContent, *origin: str) -> bytes:
    """Return a message as JSON, after the id of its sender if one is given."""
    text = orjson.dumps([*origin, *_parts(content)])
    if len(text) > MAX_NOTICE_BYTES and isinstance(content, Notice):
        text = orjson.dumps([*origin, *_parts(content._replace(lines=()))])
    return text


def decode(message: bytes) -> BusMessage | None:
    """Decode a message that begins with the id of its sender; return None if it has another format."""
    try:
        match orjson.loads(message):
            case [str(origin), *parts]:
                content = decode_parts(parts)
                return None if content is None else BusMessage(origin, content)
            case _:
                return None
    except orjson.JSONDecodeError:
        return None


def decode_parts(parts: list[Any]) -> BusContent | None:
    """Decode a message without its sender. A message of a newer version is None."""
    try:
        match parts:
            case ["n", str(run_id), int(last_seq), list()]:
                lines = cast("list[list[Any]]", parts[3])
                return Notice(run_id, last_seq, tuple(StoredEvent(*line) for line in lines))
            case ["d" | "a" as letter, str(run_id), int(attempt), str(kind), str(data)]:
                return Delta(run_id, attempt, kind, data, repeat=letter == "a")
            case ["c", str(run_id)]:
                return CancelSignal(run_id)
            case ["r", str(run_id)]:
                return ReaderJoined(run_id)
            case ["w", str(service)]:
                return WorkReported(service)
            case ["b", str(lane)]:
                return Bell(lane)
            case ["s", str(lane)]:
                return BellServed(lane)
            case ["f", *run_ids]:
                return Followed(tuple(cast("list[str]", run_ids)))
            case ["j"]:
                return ProcessJoined()
            case _:
                return None
    except TypeError:
        return None


def _parts(content: BusContent) -> list[Any]:
    match content:
        case Notice():
            return ["n", content.run_id, content.last_seq, _lines(content.lines)]
        case Delta():
            # Processes of older versions ignore repeats.
            return ["a" if content.repeat else "d", *content[:4]]
        case CancelSignal():
            return ["c", content.run_id]
        case ReaderJoined():
            return ["r", content.run_id]
        case WorkReported():
            return ["w", content.service]
        case Bell():
            return ["b", content.lane]
        case BellServed():
            return ["s", content.lane]
        case Followed():
            return ["f", *content.run_ids]
        case ProcessJoined():
            return ["j"]


def _lines(lines: Iterable[StoredEvent]) -> list[list[Any]]:
    return [list(line) for line in lines]
