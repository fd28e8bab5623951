"""Payloads of Postgres notifications: several messages of one process in one payload, or a part of a large message.

A payload is limited to 8,000 bytes, and every notifying transaction takes a lock of the whole server, so messages are
packed.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import orjson

MAX_PAYLOAD_BYTES = 7_800
# A message in parts has at most this size; larger ones are dropped.
MAX_MESSAGE_BYTES = 256 * 1024
_PART_BYTES = 5_700
# The maximum number of incomplete messages. The parts of a message arrive together, so older ones are leftovers.
_MAX_INCOMPLETE = 100


class Notification(NamedTuple):
    """The content of a payload: its sender and its messages, each a JSON array."""

    origin: str
    messages: Sequence[list[Any]]


def pack(origin: str, messages: Iterable[bytes], first_number: int = 0) -> list[str]:
    """Return the payloads for messages, which are JSON arrays. Large ones are numbered from `first_number`."""
    payloads: list[str] = []
    head = b'["' + origin.encode() + b'",['
    batch: list[bytes] = []
    size = len(head) + 2
    for number, message in enumerate(messages, first_number):
        if len(head) + len(message) + 2 > MAX_PAYLOAD_BYTES:
            payloads += _parts(origin, number, message)
            continue
        if size + len(message) + 1 > MAX_PAYLOAD_BYTES:
            payloads.append(_payload(head, batch))
            batch, size = [], len(head) + 2
        batch.append(message)
        size += len(message) + 1
    if batch:
        payloads.append(_payload(head, batch))
    return payloads


def _payload(head: bytes, messages: list[bytes]) -> str:
    return (head + b",".join(messages) + b"]]").decode()


def _parts(origin: str, number: int, message: bytes) -> list[str]:
    if len(message) > MAX_MESSAGE_BYTES:
        return []
    parts = [message[start : start + _PART_BYTES] for start in range(0, len(message), _PART_BYTES)]
    return [
        orjson.dumps([origin, number, position, len(parts), b64encode(part).decode()]).decode()
        for position, part in enumerate(parts)
    ]


class Unpacker:
    """Reads payloads, and joins the parts of large messages."""

    def __init__(self) -> None:
        self._incomplete: dict[tuple[str, int], list[str]] = {}

    def unpack(self, payload: str) -> Notification | None:
        """Return the messages that a payload contains or completes; None if it has another format."""
        try:
            parts = cast("list[Any]", orjson.loads(payload))
            match parts:
                case [str(origin), list()]:
                    return Notification(origin, cast("list[list[Any]]", parts[1]))
                case [str(origin), int(number), int(position), int(count), str(part)]:
                    return Notification(origin, self._join(origin, number, position, count, part))
                case _:
                    return None
        except (orjson.JSONDecodeError, ValueError):
            return None

    def _join(self, origin: str, number: int, position: int, count: int, part: str) -> list[list[Any]]:
        """Parts of one sender arrive in order, so a gap means that some were sent before this process listened."""
        parts = [] if position == 0 else self._incomplete.pop((origin, number), [])
        if len(parts) != position:
            return []
        parts.append(part)
        if len(parts) == count:
            return [orjson.loads(b"".join(b64decode(encoded) for encoded in parts))]
        while len(self._incomplete) >= _MAX_INCOMPLETE:
            del self._incomplete[next(iter(self._incomplete))]
        self._incomplete[origin, number] = parts
        return []
