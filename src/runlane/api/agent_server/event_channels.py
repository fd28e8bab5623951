"""Subscriptions to the events of a thread, and the numbers that order the events.

The number of an event is computed from stored values: the ordinal of the run in its thread, the number of the log entry
in the run, and the position among the events of the entry. So every server computes the same numbers, a reader can
resume at any server, and the deletion of old runs changes no number. The numbers fit into the integers of JavaScript.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

_PART_BITS: Final = 6
_ENTRY_BITS: Final = 25
MAX_PARTS: Final = (1 << _PART_BITS) - 1
_MAX_ENTRY: Final = (1 << _ENTRY_BITS) - 1
MAX_NUMBER: Final = 2**53 - 1
_CUSTOM: Final = "custom"


class EventNumber(NamedTuple):
    """The position of an event in its thread. Part 0 of an entry is before its events."""

    ordinal: int
    entry: int = 0
    part: int = 0

    def to_int(self) -> int:
        """Return the position as the number that clients receive."""
        return (self.ordinal << (_ENTRY_BITS + _PART_BITS)) | (min(self.entry, _MAX_ENTRY) << _PART_BITS) | self.part

    @classmethod
    def from_int(cls, number: int) -> EventNumber:
        """Return the position that a number stands for."""
        entry = (number >> _PART_BITS) & _MAX_ENTRY
        return cls(number >> (_ENTRY_BITS + _PART_BITS), entry, number & MAX_PARTS)


def part_of(index: int, count: int) -> int:
    """Return the part of the event at this index of an entry with `count` events.

    If an entry has more events than parts, its first events share part 0. A reader that resumes there receives them
    again and recognizes them by their ids.
    """
    return index + 1 if count <= MAX_PARTS else max(0, index + 1 - (count - MAX_PARTS))


@dataclass(frozen=True, slots=True)
class EventSelection:
    """The events that a reader receives: of these channels and namespaces, at most `depth` levels below them."""

    channels: frozenset[str]
    namespaces: Sequence[Sequence[str]] | None = None
    depth: int | None = None

    def includes(self, method: str, namespace: Sequence[str], data: Any) -> bool:
        """Return whether the reader receives an event."""
        channel = _channel_of(method, data)
        in_channels = channel in self.channels or (channel.startswith("custom:") and _CUSTOM in self.channels)
        return in_channels and self._in_namespaces(namespace)

    def _in_namespaces(self, namespace: Sequence[str]) -> bool:
        prefixes = self.namespaces or ((),)
        return any(
            _is_prefix(prefix, namespace) and (self.depth is None or len(namespace) - len(prefix) <= self.depth)
            for prefix in prefixes
        )


@dataclass(frozen=True, slots=True)
class UnionSelection:
    """The events of several selections, without duplicates."""

    selections: tuple[EventSelection, ...]

    def includes(self, method: str, namespace: Sequence[str], data: Any) -> bool:
        """Return whether one of the selections includes an event."""
        return any(selection.includes(method, namespace, data) for selection in self.selections)


def _channel_of(method: str, data: Any) -> str:
    if method == "input.requested":
        return "input"
    if method == _CUSTOM and isinstance(data, dict) and data.get("name"):
        return f"custom:{data['name']}"
    return method


def _is_prefix(prefix: Sequence[str], namespace: Sequence[str]) -> bool:
    """Compare segments. A segment of the prefix without an id matches every id."""
    if len(prefix) > len(namespace):
        return False
    return all(
        wanted == segment or (":" not in wanted and wanted == segment.partition(":")[0])
        for wanted, segment in zip(prefix, namespace, strict=False)
    )
