"""How notices, deltas and cancel signals travel between processes: small JSON with the sender's mark.

The mark lets a process ignore its own words, which it has heard already without the way round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import orjson

from runlane.model.event import Delta, Line, Notice

# A notice with more text than this goes without its events; readers fetch them from the database.
MAX_NOTICE_BYTES = 256 * 1024


class Message(NamedTuple):
    """A decoded message: who sent it, and what it says."""

    origin: str
    told: Notice | Delta | str


def encode_notice(origin: str, notice: Notice) -> bytes:
    """A notice for the channel of its run."""
    text = orjson.dumps([origin, "n", notice.run_id, notice.last_seq, _lines(notice.lines)])
    if len(text) > MAX_NOTICE_BYTES:
        text = orjson.dumps([origin, "n", notice.run_id, notice.last_seq, []])
    return text


def encode_delta(origin: str, delta: Delta) -> bytes:
    """A delta for the channel of its run."""
    return orjson.dumps([origin, "d", *delta])


def encode_cancel(origin: str, run_id: str) -> bytes:
    """A cancel signal."""
    return orjson.dumps([origin, "c", run_id])


def decode(message: bytes) -> Message | None:
    """What a message says; None when it is none of ours."""
    try:
        parts = cast("list[Any]", orjson.loads(message))
        match parts:
            case [str(origin), "n", str(run_id), int(last_seq), list()]:
                rows = cast("list[list[Any]]", parts[4])
                return Message(origin, Notice(run_id, last_seq, tuple(Line(*row) for row in rows)))
            case [str(origin), "d", str(run_id), int(attempt), str(kind), str(data)]:
                return Message(origin, Delta(run_id, attempt, kind, data))
            case [str(origin), "c", str(run_id)]:
                return Message(origin, run_id)
            case _:
                return None
    except (orjson.JSONDecodeError, TypeError):
        return None


def _lines(lines: Iterable[Line]) -> list[list[Any]]:
    return [list(line) for line in lines]
