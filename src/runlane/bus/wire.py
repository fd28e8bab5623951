"""The wire format of notices, deltas and signals between processes: compact JSON with the id of the sender.

With the id a process ignores its own messages, which it has delivered locally already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import orjson

from runlane.domain.events import Delta, Notice, StoredEvent

# A notice with more text than this is sent without its events; readers fetch them from the database.
MAX_NOTICE_BYTES = 256 * 1024


class CancelSignal(NamedTuple):
    """A run was cancelled."""

    run_id: str


class ReaderJoined(NamedTuple):
    """A reader has joined a run."""

    run_id: str


class BusMessage(NamedTuple):
    """A decoded message: its sender and its content."""

    origin: str
    content: Notice | Delta | CancelSignal | ReaderJoined


def encode_notice(origin: str, notice: Notice) -> bytes:
    """Encode a notice for the channel of its run."""
    text = orjson.dumps([origin, "n", notice.run_id, notice.last_seq, _lines(notice.lines)])
    if len(text) > MAX_NOTICE_BYTES:
        text = orjson.dumps([origin, "n", notice.run_id, notice.last_seq, []])
    return text


def encode_delta(origin: str, delta: Delta) -> bytes:
    """Encode a delta for the channel of its run."""
    # Processes of older versions ignore repeats.
    return orjson.dumps([origin, "a" if delta.repeat else "d", *delta[:4]])


def encode_cancel(origin: str, run_id: str) -> bytes:
    """Encode a cancel signal."""
    return orjson.dumps([origin, "c", run_id])


def encode_reader(origin: str, run_id: str) -> bytes:
    """Encode the announcement of a reader. Processes of older versions ignore it."""
    return orjson.dumps([origin, "r", run_id])


def decode(message: bytes) -> BusMessage | None:
    """Decode a message; return None if it has another format."""
    try:
        parts = cast("list[Any]", orjson.loads(message))
        match parts:
            case [str(origin), "n", str(run_id), int(last_seq), list()]:
                rows = cast("list[list[Any]]", parts[4])
                return BusMessage(origin, Notice(run_id, last_seq, tuple(StoredEvent(*row) for row in rows)))
            case [str(origin), "d" | "a" as letter, str(run_id), int(attempt), str(kind), str(data)]:
                return BusMessage(origin, Delta(run_id, attempt, kind, data, repeat=letter == "a"))
            case [str(origin), "c", str(run_id)]:
                return BusMessage(origin, CancelSignal(run_id))
            case [str(origin), "r", str(run_id)]:
                return BusMessage(origin, ReaderJoined(run_id))
            case _:
                return None
    except (orjson.JSONDecodeError, TypeError):
        return None


def _lines(lines: Iterable[StoredEvent]) -> list[list[Any]]:
    return [list(line) for line in lines]
