"""Count the runs of each minute after its end, and those of each hour from its minutes.

Any process may do this; a lock admits one process at a time. A minute is counted a moment after its end, because a
transaction that starts or ends a run stores its time before it commits.
"""

from __future__ import annotations

from typing import Final

from runlane.domain.ids import lock_key
from runlane.domain.series import SeriesCounts
from runlane.settings import Settings
from runlane.store.queue.run_series import (
    HOUR,
    KEPT_MINUTES_SECONDS,
    MINUTE,
    Group,
    count_between,
    forget_buckets,
    last_counted,
    next_change_us,
    rows_between,
    store_bucket,
)
from runlane.store.queue.run_starts import count_starts
from runlane.store.sql.database import Database, Session, clock_in

EVERY_SECONDS: Final = 15.0
_LOCK: Final = lock_key("duty", "run_series")
# How long after its end a minute is counted.
_LATE_SECONDS: Final = 10
# The part of the past that is counted after a start without figures, or after a long stop.
_BACK_SECONDS: Final = 24 * HOUR
_AT_ONCE: Final = 30
_SECOND_US: Final = 1_000_000


class SeriesCounter:
    """One pass; `PeriodicService` is the loop."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._database = database
        self._kept_seconds = int(settings.retention_days * 86400)

    async def run_once(self) -> bool:
        """Count some minutes; return True when there are more."""
        return await self._database.transact(self._count)

    async def _count(self, session: Session) -> bool:
        if not await session.try_lock(_LOCK):
            return False
        now = await clock_in(session) // _SECOND_US
        over = (now - _LATE_SECONDS) // MINUTE * MINUTE
        last = await last_counted(session, MINUTE)
        oldest = (now - _BACK_SECONDS) // MINUTE * MINUTE
        bucket = max(oldest, oldest if last is None else last + MINUTE)
        if bucket >= over:
            return False
        starts = await count_starts(session, bucket * _SECOND_US, over * _SECOND_US)
        if bucket < over - MINUTE:
            # Minutes without a change are not counted one by one. The last one is the mark for the next pass.
            changed = await next_change_us(session, bucket * _SECOND_US)
            changes = [one.bucket for one in starts] + ([] if changed is None else [_minute_of(changed)])
            bucket = max(bucket, min([over - MINUTE, *changes]))
        for _ in range(_AT_ONCE):
            if bucket >= over:
                break
            found = await count_between(session, bucket * _SECOND_US, (bucket + MINUTE) * _SECOND_US)
            for one in starts:
                if one.bucket == bucket:
                    found.setdefault((one.lane, one.target, one.tenant), SeriesCounts()).started += one.runs
            await store_bucket(session, MINUTE, bucket, found)
            bucket += MINUTE
        await self._count_hours(session, bucket)
        return bucket < over

    async def _count_hours(self, session: Session, counted_until: int) -> None:
        """Add up the hours whose minutes are counted, and forget what is too old."""
        last = await last_counted(session, HOUR)
        oldest = (counted_until - _BACK_SECONDS) // HOUR * HOUR
        hour = max(oldest, oldest if last is None else last + HOUR)
        while hour + HOUR <= counted_until:
            found: dict[Group, SeriesCounts] = {}
            for row in await rows_between(session, MINUTE, hour, hour + HOUR):
                found.setdefault((row.lane, row.target, row.tenant), SeriesCounts()).add(row.counts)
            await store_bucket(session, HOUR, hour, found)
            hour += HOUR
            await forget_buckets(session, MINUTE, counted_until - KEPT_MINUTES_SECONDS)
            await forget_buckets(session, HOUR, counted_until - self._kept_seconds)


def _minute_of(at_us: int) -> int:
    return at_us // _SECOND_US // MINUTE * MINUTE
