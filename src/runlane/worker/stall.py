"""Detect a worker whose event loop or claim loop is blocked.

The liveness thread renews the lease whatever the worker's event loop does, so that user code may block the loop for a
while without losing its runs. After `stall_seconds`, a blocked loop is considered stuck: such a worker neither finishes
nor cancels runs, so they must move to another worker.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback

from runlane.settings import Settings
from runlane.worker.health import WorkerHealth


def stall_limit(settings: Settings) -> float:
    """Return how many seconds the event loop of a worker may be blocked."""
    return 4 * settings.lease_seconds if settings.stall_seconds is None else settings.stall_seconds


class LoopWatch:
    """Watches the event loop of the thread that creates it; its methods are called from the liveness thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, health: WorkerHealth, stall_seconds: float) -> None:
        self.stall_seconds = stall_seconds
        self._loop = loop
        self._health = health
        self._thread_id = threading.get_ident()

    def restart(self) -> None:
        """Count from this moment."""
        self._health.loop_turned_at = time.monotonic()
        self._health.claim_loop_turned_at = max(self._health.claim_loop_turned_at, self._health.loop_turned_at)

    def ping(self) -> None:
        """Schedule a callback in the event loop, which notes that the loop runs."""
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            # The loop is closed, which ends the worker in another way.
            self._answer()

    def silent_seconds(self) -> float:
        """Return how long the event loop, or the claim loop of a worker that claims, has not made progress."""
        now = time.monotonic()
        silent = now - self._health.loop_turned_at
        return silent if self._health.draining else max(silent, now - self._health.claim_loop_turned_at)

    @property
    def stalled(self) -> bool:
        """Whether the loop counts as stuck."""
        return self.silent_seconds() > self.stall_seconds

    @property
    def hopeless(self) -> bool:
        """Whether the loop has stayed stuck for another period after it was found stuck."""
        return self.silent_seconds() > 2 * self.stall_seconds

    def stack(self) -> str:
        """Return the stack of the loop's thread, as source lines without values."""
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - the only way to another thread's stack
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def _answer(self) -> None:
        self._health.loop_turned_at = time.monotonic()
