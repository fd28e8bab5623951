"""Timers: requeue scheduled runs that are due, and paused runs that waited for a time or whose deadline has passed.

Batches that are due get their input first, and runs that have expired are cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, select, update

from runlane.domain.run import RunHook, Status
from runlane.store.queue.early_ends import NEXT_EXPIRY
from runlane.store.queue.flow_starts import seal_batches
from runlane.store.queue.limits import queued_status, wait_for_limits
from runlane.store.queue.start_tags import place_due
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import by_key_only, has_bits, lit, now_once, now_us
from runlane.store.sql.schema import runs
from runlane.store.sql.statement import Statement

AT_ONCE = 1000


def _queue_due(status: Status) -> Statement:
    due = (
        select(runs.c.id)
        .where(
            runs.c.status == lit(status),
            runs.c.due_at.is_not(None),
            runs.c.due_at <= now_once(),
            ~has_bits(runs.c.hooks, RunHook.COLLECTS),
        )
        .order_by(runs.c.due_at)
        .limit(lit(AT_ONCE))
        .with_for_update(skip_locked=True)
        .cte("due")
    )
    return Statement(
        f"queue_due_{status}",
        update(runs)
        .where(runs.c.id == due.c.id, by_key_only(runs.c.status) == lit(status))
        .values(status=queued_status())
        .returning(runs.c.id, runs.c.lane, runs.c.status, runs.c.hooks, runs.c.ordering_key, runs.c.holds_key),
        purpose=f"Make {status} runs ready that are due.",
    )


_QUEUE_SCHEDULED = _queue_due(Status.SCHEDULED)
_QUEUE_PAUSED = _queue_due(Status.PAUSED)


def _first_due(status: Status) -> ColumnElement[int]:
    waiting = select(func.min(runs.c.due_at)).where(runs.c.status == lit(status), runs.c.due_at.is_not(None))
    return waiting.scalar_subquery() - now_us()


_NEXT_DUE = Statement(
    "next_due",
    select(
        _first_due(Status.SCHEDULED).label("scheduled"),
        _first_due(Status.PAUSED).label("paused"),
        (NEXT_EXPIRY - now_us()).label("expiring"),
    ),
    purpose="Read when the next scheduled or paused run is due, or the next run expires.",
)


async def queue_due(session: Session) -> Sequence[str]:
    """Requeue due runs, a bounded number at once; return the lane of each."""
    await seal_batches(session)
    await place_due(session, AT_ONCE)
    rows = [*await session.fetch(_QUEUE_SCHEDULED), *await session.fetch(_QUEUE_PAUSED)]
    await wait_for_limits(session, rows)
    return [row["lane"] for row in rows]


async def next_due_seconds(session: Session) -> float | None:
    """Return the time until the next run is due or expires, or None if there is none."""
    (row,) = await session.fetch(_NEXT_DUE)
    dues = [row[column] for column in ("scheduled", "paused", "expiring") if row[column] is not None]
    return max(0.0, min(dues) / 1_000_000) if dues else None
