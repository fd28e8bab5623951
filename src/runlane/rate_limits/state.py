"""The limits and back-offs that this process has read, refreshed about twice a second while calls are made."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from runlane.domain.rate_limit import ProviderLimits, default_limits
from runlane.errors import Unavailable
from runlane.store.rate_limits.limits import LimitSnapshot, add_credential, read_snapshot
from runlane.store.sql.database import Database

REFRESH_SECONDS: Final = 0.5
# No call begins on the basis of an older snapshot.
FRESH_SECONDS: Final = 1.5
# A process that made no call for this long stops reading.
_IDLE_SECONDS: Final = 30.0


class LimitState:
    """One per process. Use it in one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._snapshot = LimitSnapshot({}, {})
        self._read_at = float("-inf")
        self._used_at = float("-inf")
        self._reading: asyncio.Future[None] | None = None
        self._loop: asyncio.Task[None] | None = None
        self._listed: set[str] = set()
        self._recovered: dict[str, float] = {}
        self._own_slow: dict[str, tuple[float, str]] = {}

    def limits(self, credential: str) -> ProviderLimits:
        found = self._snapshot.limits.get(credential)
        return default_limits(credential) if found is None else found

    def slow(self, credential: str) -> tuple[float, str]:
        """Return how many seconds of a credential's back-off are left, and its reason."""
        now = time.monotonic()
        until, reason = self._own_slow.get(credential, (now, ""))
        found = self._snapshot.slow.get(credential)
        if found is not None and self._read_at + found.left_seconds > until:
            until, reason = self._read_at + found.left_seconds, found.reason
        return max(0.0, until - now), reason

    def report_slowdown(self, credential: str, seconds: float, reason: str) -> None:
        """Apply a back-off before the next snapshot contains it."""
        self._own_slow[credential] = (time.monotonic() + seconds, reason)

    def is_first_recovery(self, credential: str, entered: float) -> bool:
        """Return whether a call that began then is the first success after a back-off."""
        found = self._snapshot.slow.get(credential)
        if found is None or self._recovered.get(credential, float("-inf")) >= self._read_at:
            return False
        if entered <= self._read_at - found.ago_seconds:
            return False
        self._recovered[credential] = time.monotonic()
        return True

    async def ensure_fresh(self) -> None:
        """Return when the snapshot is recent enough to act on. Raise Unavailable when the database cannot be read."""
        self._used_at = time.monotonic()
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._read_loop(), name="runlane-limits-read")
        if time.monotonic() - self._read_at > FRESH_SECONDS:
            await self.refresh()

    async def refresh(self) -> None:
        """Read a snapshot. Concurrent callers share one query."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._refresh())
            # The exception is retrieved here, because every caller may be gone when the query fails.
            self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._reading)

    async def list_credential(self, credential: str) -> None:
        """Make the credential appear in lists of limits."""
        if credential not in self._listed:
            await add_credential(self._database, credential)
            self._listed.add(credential)

    async def close(self) -> None:
        """Stop reading, and wait until a running query has ended."""
        tasks = [task for task in (self._loop, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _refresh(self) -> None:
        # The age counts from before the query, because the result may be that old.
        started = time.monotonic()
        self._snapshot = await read_snapshot(self._database)
        self._read_at = started

    async def _read_loop(self) -> None:
        """Refresh the snapshot. Policy for errors: continue; no call begins on the basis of an old snapshot."""
        while time.monotonic() - self._used_at <= _IDLE_SECONDS:
            await asyncio.sleep(REFRESH_SECONDS)
            with contextlib.suppress(Unavailable):
                await self.refresh()
