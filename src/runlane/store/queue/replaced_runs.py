"""The statements that cancel runs which others with the same unique key replace."""

from __future__ import annotations

from sqlalchemy import select, update

from runlane.domain.run import Status
from runlane.store.sql.expressions import by_key_only, lit, member, now_us
from runlane.store.sql.schema import runs
from runlane.store.sql.statement import Statement

# Locked rows are left out: a transaction that holds a key of flow control never waits for a run.
LOCK_REPLACED = Statement(
    "lock_replaced_runs",
    select(runs.c.id, runs.c.ordering_key, runs.c.attempt)
    .where(member(runs.c.id, "ids"))
    .with_for_update(skip_locked=True),
    purpose="Lock the runs that others replace.",
)
REQUEST_CANCEL = Statement(
    "cancel_running_replaced",
    update(runs)
    .where(
        member(runs.c.id, "ids"),
        by_key_only(runs.c.status) == lit(Status.RUNNING),
        runs.c.cancel_requested_at.is_(None),
    )
    .values(cancel_requested_at=now_us(), last_seq=runs.c.last_seq + lit(1))
    .returning(runs.c.id, runs.c.last_seq, runs.c.attempt),
    purpose="Request the cancellation of running runs that others replace.",
)
