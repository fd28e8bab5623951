"""Timers: make scheduled runs ready when they are due, and cancel runs that have expired."""

from __future__ import annotations

from collections.abc import Sequence

from runlane.bus import Bus
from runlane.domain.events import Notice
from runlane.domain.ids import lock_key
from runlane.domain.run import Status
from runlane.failpoints import failpoint
from runlane.observability import metrics
from runlane.store.queue.early_ends import EXPIRED_AT_ONCE, expire_due
from runlane.store.queue.ordering import ReleasedRun
from runlane.store.queue.timers import AT_ONCE, next_due_seconds, queue_due
from runlane.store.sql.database import Database, Session

_LOCK = lock_key("duty", "timers")


class Timers:
    """One pass; `PeriodicService` is the loop."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus

    async def run_once(self) -> bool:
        """Queue the due runs; return True when there were more than one pass takes."""
        lanes, changed, next_seconds = await self._database.transact(_queue_due)
        if lanes or changed:
            failpoint("timers.committed")
            self._bus.ring({*lanes, *(item.lane for item in changed if item.status is Status.QUEUED)})
        expired = sum(item.status is Status.CANCELLED for item in changed)
        if expired:
            metrics.FLOW_CONTROL.add("expires_after_seconds", "expired", count=expired)
        if changed:
            self._bus.publish([Notice(item.run_id, item.last_seq) for item in changed])
        if next_seconds is not None:
            self._bus.report_timer(next_seconds)
        return len(lanes) >= AT_ONCE or expired >= EXPIRED_AT_ONCE


async def _queue_due(session: Session) -> tuple[Sequence[str], Sequence[ReleasedRun], float | None]:
    if not await session.try_lock(_LOCK):
        return (), (), None
    # This comes first, because it takes locks of ordering keys, which come before locks of rows.
    changed = await expire_due(session)
    lanes = await queue_due(session)
    if lanes or changed:
        failpoint("timers.before_commit")
    return lanes, changed, await next_due_seconds(session)
