"""SSE frames: each event is encoded once per process, for all its readers.

A frame is built from stored fields only, so live and replayed events have the same bytes. Deltas have no id: they are
not stored, so a reader cannot resume after one.
"""

from __future__ import annotations

from runlane.domain.events import Delta, StoredEvent
from runlane.domain.timestamps import format_timestamp

KEEPALIVE = b": keepalive\n\n"


def line_json(run_id: str, line: StoredEvent) -> str:
    """Return the JSON of an event: its own fields and the fields that every event has."""
    at = format_timestamp(line.at_us)
    head = f'{{"type":"{line.type}","seq":{line.seq},"run_id":"{run_id}","attempt":{line.attempt},"at":"{at}"'
    return f"{head}}}" if line.data == "{}" else f"{head},{line.data[1:]}"


def line_frame(run_id: str, line: StoredEvent) -> bytes:
    """Return an event as one SSE frame. The id is the number of the event."""
    return f"id: {line.seq}\ndata: {line_json(run_id, line)}\n\n".encode()


def delta_frame(delta: Delta) -> bytes:
    """Return a delta as one SSE frame without an id."""
    head = f'{{"type":"{delta.type}","run_id":"{delta.run_id}","attempt":{delta.attempt}'
    body = f"{head}}}" if delta.data == "{}" else f"{head},{delta.data[1:]}"
    return f"data: {body}\n\n".encode()


def cut_frame(run_id: str, first_seq: int) -> bytes:
    """Return a frame without an id that announces a gap: events before `first_seq` are no longer stored."""
    return f'data: {{"type":"truncated","run_id":"{run_id}","first_seq":{first_seq}}}\n\n'.encode()


def comment(text: str) -> bytes:
    """Return an SSE comment, which clients ignore."""
    return f": {text}\n\n".encode()
