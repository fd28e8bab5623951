"""A page of stored events, as frames that readers share or in a reader's own encoding."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from runlane.api.sse_encoding import cut_frame, line_frame
from runlane.domain.events import EventType, StoredEvent
from runlane.store.queue.events import read_part
from runlane.store.sql.database import Database

PAGE: Final = 500


class Encoding(Protocol):
    """The encoding of events for a reader that does not share the frames of other readers.

    `event` returns empty bytes for an event that the reader does not receive. Such a reader receives no deltas.
    """

    def event(self, run_id: str, line: StoredEvent) -> bytes: ...

    def gap(self, run_id: str, first_seq: int) -> bytes: ...


@dataclass(slots=True)
class Page:
    """Stored events of a run after a number, and whether there may be more. Readers share the frames."""

    run_id: str
    after: int
    lines: list[StoredEvent]
    more: bool
    _shared: bytes | None = None

    @property
    def last(self) -> int:
        """The number of the last event."""
        return self.lines[-1].seq if self.lines else self.after

    @property
    def may_be_last(self) -> bool:
        """Whether the run may have ended: the page is empty, or its last event is `done`."""
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


class PageReads:
    """Reads pages. Concurrent readers of the same page share one read and its encoding."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reading: dict[tuple[str, int], asyncio.Task[Page]] = {}

    async def get(self, run_id: str, after: int) -> Page:
        """Return stored events of a run after a number."""
        key = (run_id, after)
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(self._read(run_id, after))
            reading.add_done_callback(lambda task: self._have_read(key, task))
        # A reader that disconnects must not cancel the read for other readers.
        return await asyncio.shield(reading)

    async def complete(self, timeout_seconds: float) -> None:
        """Wait for pending reads."""
        if self._reading:
            await asyncio.wait(self._reading.values(), timeout=timeout_seconds)

    async def _read(self, run_id: str, after: int) -> Page:
        lines, more = await read_part(self._database, run_id, after, PAGE)
        return Page(run_id, after, lines, more)

    def _have_read(self, key: tuple[str, int], reading: asyncio.Task[Page]) -> None:
        del self._reading[key]
        if not reading.cancelled():
            reading.exception()  # mark the exception as retrieved, because no reader may be waiting
