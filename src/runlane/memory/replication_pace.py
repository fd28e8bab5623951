"""Decide when the replicator sends its next batches: background work that callers do not wait for.

A batch costs the same for one operation as for many memories, so operations are collected for a short time. While many
callers wait for the acknowledgement of changes, replication yields to them, for a bounded time. A caller that waits for
a commit ends both delays: replication continues at once, without pauses, until no caller waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from runlane.memory.commit_waiters import CommitWaiters

# The minimum time between the starts of two rounds.
GATHER_SECONDS: Final = 0.05
# The minimum time while at least this many changes wait for their acknowledgement.
PAUSE_SECONDS: Final = 1.0
BUSY_CHANGES: Final = 64


class ReplicationPace:
    """Delays the rounds of one replicator.

    `unacknowledged` returns how many changes of callers wait for their acknowledgement.
    """

    def __init__(
        self, waiters: CommitWaiters, unacknowledged: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._waiters = waiters
        self._unacknowledged = unacknowledged
        self._clock = clock
        self._began = float("-inf")

    async def turn(self, wake: asyncio.Event) -> None:
        """Return when the next round should begin. `wake` is set after each commit and for each caller of a commit."""
        while (left := self._seconds_left()) > 0:
            wake.clear()
            # wait_for() is not used, because it may lose the cancellation of a stop that coincides with a commit.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await wake.wait()
        self._began = self._clock()

    def _seconds_left(self) -> float:
        if self._waiters:
            return 0.0
        pause = PAUSE_SECONDS if self._unacknowledged() >= BUSY_CHANGES else GATHER_SECONDS
        return self._began + pause - self._clock()
