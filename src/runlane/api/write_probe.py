"""Probe in the background whether the database accepts writes, so that a readiness check needs no write.

A database with a full disk, or in read-only mode, still answers reads. Its servers should receive no requests, because
they cannot accept runs.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from runlane.domain.ids import new_id
from runlane.errors import Unavailable
from runlane.store.access.idempotency import try_write
from runlane.store.sql.database import Database

log = structlog.get_logger(__name__)

PROBE_SECONDS: Final = 5.0


class WriteProbe:
    """Probes at intervals. `failing` is the result of the last probe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Each process has one row, which every probe overwrites.
        self._key = new_id("probe")
        self._task: asyncio.Task[None] | None = None
        self.failing = False

    async def start(self) -> None:
        """Start probing."""
        self._task = asyncio.create_task(self._loop(), name="runlane-write-probe")

    async def stop(self) -> None:
        """Stop. Safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _loop(self) -> None:
        while True:
            await self.probe()
            await asyncio.sleep(PROBE_SECONDS)

    async def probe(self) -> None:
        """Write once, and store the result in `failing`."""
        try:
            await try_write(self._database, self._key)
        except Unavailable as error:
            # SQLite reports a full disk with this error. An unreachable database is not ready in any case.
            self._note(str(error))
        except Exception as error:  # noqa: BLE001 - any error means that the write failed
            self._note(f"{type(error).__name__}: {error}")
        else:
            self._note(None)

    def _note(self, error: str | None) -> None:
        if error is not None and not self.failing:
            log.error("database_refuses_writes", error=error)
        elif error is None and self.failing:
            log.info("database_accepts_writes")
        self.failing = error is not None
