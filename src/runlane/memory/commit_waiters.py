"""Callers that wait until the operations of a memory are in the database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Waiter:
    seq: int
    changed: asyncio.Event


class CommitWaiters:
    """Wakes the callers of a memory when its replication has advanced or stopped. No caller polls."""

    def __init__(self) -> None:
        self._waiters: dict[str, set[_Waiter]] = {}

    def __len__(self) -> int:
        """Return how many memories have callers that wait."""
        return len(self._waiters)

    @contextlib.contextmanager
    def waiting(self, memory_id: str, seq: int) -> Generator[asyncio.Event]:
        """Yield an event that is set when replication has reached this number or has stopped."""
        waiter = _Waiter(seq, asyncio.Event())
        self._waiters.setdefault(memory_id, set()).add(waiter)
        try:
            yield waiter.changed
        finally:
            waiters = self._waiters[memory_id]
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[memory_id]

    def moved(self, memory_id: str, applied_seq: int) -> None:
        """Wake the callers whose operations are in the database now."""
        for waiter in self._waiters.get(memory_id, ()):
            if waiter.seq <= applied_seq:
                waiter.changed.set()

    def stopped(self, memory_id: str) -> None:
        """Wake every caller of a memory that was parked."""
        for waiter in self._waiters.get(memory_id, ()):
            waiter.changed.set()
