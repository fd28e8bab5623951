"""Wake an idle worker when another process has changed its SQLite file, which carries no bells between processes.

SQLite counts the commits of other connections, and reading the count costs less than a claim. A process that commits
all the time must not make an idle worker claim as often, because each claim takes the write lock: while claims find
nothing, the pauses between them grow to the interval at which the worker polls anyway.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from runlane.errors import Unavailable
from runlane.store.queue.live_runs import read_data_version
from runlane.store.sql.database import Database

# How often the count is read.
CHECK_SECONDS: Final = 0.04
_MOST_SECONDS: Final = 0.25


class ChangeWatch:
    """Calls `wake` after changes while `is_idle` returns True. `last_claim` returns when a claim last found runs."""

    def __init__(
        self,
        database: Database,
        *,
        wake: Callable[[], None],
        is_idle: Callable[[], bool],
        last_claim: Callable[[], float],
    ) -> None:
        self._database = database
        self._wake = wake
        self._is_idle = is_idle
        self._last_claim = last_claim
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to watch."""
        self._task = asyncio.create_task(self._run(), name="runlane-change-watch")

    async def stop(self) -> None:
        """End the watch."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        seen: int | None = None
        woke_at, pause = float("-inf"), CHECK_SECONDS
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if not self._is_idle():
                continue
            try:
                version = await read_data_version(self._database)
            except Unavailable:
                continue  # the claim loop reports it
            if version == seen or time.monotonic() < woke_at + pause:
                continue
            if seen is not None:
                pause = CHECK_SECONDS if self._last_claim() > woke_at else min(pause * 2, _MOST_SECONDS)
                woke_at = time.monotonic()
                self._wake()
            seen = version
