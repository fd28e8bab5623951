"""SSE frames: each event is encoded once per process, whoever reads it.

A frame is made from the stored fields alone, so that live and replay give the same bytes. Deltas carry no id: they are
not stored, and a reader that comes back must not resume behind something that never was a number.
"""

from __future__ import annotations

from runlane.domain.events import Delta, StoredEvent
from runlane.domain.timestamps import format_timestamp

KEEPALIVE = b": keepalive\n\n"


def line_json(run_id: str, line: StoredEvent) -> str:
    """An event as readers get it: its own fields, and what every event has."""
    at = format_timestamp(line.at_us)
    head = f'{{"type":"{line.type}","seq":{line.seq},"run_id":"{run_id}","attempt":{line.attempt},"at":"{at}"'
    return f"{head}}}" if line.data == "{}" else f"{head},{line.data[1:]}"


def line_frame(run_id: str, line: StoredEvent) -> bytes:
    """An event as one SSE frame; its number is the id."""
    return f"id: {line.seq}\ndata: {line_json(run_id, line)}\n\n".encode()


def delta_frame(delta: Delta) -> bytes:
    """A delta as one SSE frame without an id."""
    head = f'{{"type":"{delta.type}","run_id":"{delta.run_id}","attempt":{delta.attempt}'
    body = f"{head}}}" if delta.data == "{}" else f"{head},{delta.data[1:]}"
    return f"data: {body}\n\n".encode()


def cut_frame(run_id: str, first_seq: int) -> bytes:
    """That the events between the reader's last number and this one are no longer kept; without an id, as a delta."""
    return f'data: {{"type":"truncated","run_id":"{run_id}","first_seq":{first_seq}}}\n\n'.encode()


def comment(text: str) -> bytes:
    """A line for people who look at the wire."""
    return f": {text}\n\n".encode()
