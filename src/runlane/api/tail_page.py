"""A page of stored events: the frames that readers share, or those of a reader with an encoding of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from runlane.api.sse_encoding import cut_frame, line_frame
from runlane.domain.events import EventType, StoredEvent


class Encoding(Protocol):
    """How one reader sees the events of a run, if it does not share the frames of all readers.

    An event without a frame for the reader is empty. Such a reader gets no deltas.
    """

    def event(self, run_id: str, line: StoredEvent) -> bytes: ...

    def gap(self, run_id: str, first_seq: int) -> bytes: ...


@dataclass(slots=True)
class Page:
    """Stored events of a run after a number, and whether the page is full. Readers share the frames."""

    run_id: str
    after: int
    lines: list[StoredEvent]
    full: bool
    _shared: bytes | None = None

    @property
    def last(self) -> int:
        """The number of the last event."""
        return self.lines[-1].seq if self.lines else self.after

    @property
    def may_be_last(self) -> bool:
        """Whether the run may have ended with this page; one that has not ended had another last event."""
        return not self.lines or self.lines[-1].type == EventType.DONE

    def frames(self, encoding: Encoding | None) -> bytes:
        """Return the frames of the events."""
        if encoding is not None:
            return self._encoded(encoding.event, encoding.gap)
        if self._shared is None:
            self._shared = self._encoded(line_frame, cut_frame)
        return self._shared

    def _encoded(self, event: Callable[[str, StoredEvent], bytes], gap: Callable[[str, int], bytes]) -> bytes:
        frames: list[bytes] = []
        last = self.after
        for line in self.lines:
            if line.seq != last + 1:
                frames.append(gap(self.run_id, line.seq))
            frames.append(event(self.run_id, line))
            last = line.seq
        return b"".join(frames)
