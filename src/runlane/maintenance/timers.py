"""Timers: makes scheduled runs ready when their time has come."""

from __future__ import annotations

from collections.abc import Sequence

from runlane.bus import Bus
from runlane.domain.ids import lock_key
from runlane.failpoints import failpoint
from runlane.store.queue.timers import AT_ONCE, next_due_seconds, queue_due
from runlane.store.sql.database import Database, Session

_LOCK = lock_key("duty", "timers")


class Timers:
    """One pass; `PeriodicService` is the loop."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus

    async def run_once(self) -> bool:
        """Queue what is due; return True when there was more than one pass takes."""
        lanes, next_seconds = await self._database.transact(_queue_due)
        if lanes:
            failpoint("timers.committed")
            self._bus.ring(set(lanes))
        if next_seconds is not None:
            self._bus.report_timer(next_seconds)
        return len(lanes) >= AT_ONCE


async def _queue_due(session: Session) -> tuple[Sequence[str], float | None]:
    if not await session.try_lock(_LOCK):
        return (), None
    lanes = await queue_due(session)
    if lanes:
        failpoint("timers.before_commit")
    return lanes, await next_due_seconds(session)
