"""Timers: scheduled runs whose time has come."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update

from runlane.model.run import Status
from runlane.store.database import Session
from runlane.store.expressions import by_key_only, lit, now_once
from runlane.store.schema import runs
from runlane.store.statement import Statement

AT_ONCE = 1000

_due = (
    select(runs.c.id)
    .where(runs.c.status == lit(Status.SCHEDULED), runs.c.due_at <= now_once())
    .order_by(runs.c.due_at)
    .limit(lit(AT_ONCE))
    .with_for_update(skip_locked=True)
    .cte("due")
)
_QUEUE_DUE = Statement(
    "queue_due",
    update(runs)
    .where(runs.c.id == _due.c.id, by_key_only(runs.c.status) == lit(Status.SCHEDULED))
    .values(status=lit(Status.QUEUED))
    .returning(runs.c.lane),
)


async def queue_due(session: Session) -> Sequence[str]:
    """Make due runs ready, a bounded number at once; the lane of each."""
    return [row["lane"] for row in await session.fetch(_QUEUE_DUE)]
