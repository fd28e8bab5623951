"""Runs that end before a worker has started them: those that expired, and those that others replace.

`expire_due` is part of the timers service. A worker does not claim a run that has expired, so a run starts in time or
not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import ColumnElement, and_, func, or_, select, update

from runlane.domain.events import EventType
from runlane.domain.run import Status
from runlane.domain.text import dump_json
from runlane.store.events.run_ends import hooks_of_end
from runlane.store.queue.dependency_rows import STORE_REASONS
from runlane.store.queue.events import append
from runlane.store.queue.ordering import ReleasedRun, key_locks
from runlane.store.queue.run_ends import count_ended, settle_ended
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_once, now_us
from runlane.store.sql.schema import runs
from runlane.store.sql.statement import Row, Statement
from runlane.store.webhooks.outbox import has_endpoints

EXPIRED_AT_ONCE: Final = 200
_WAITING = [lit(status) for status in Status if status.waiting]
_unstarted = and_(runs.c.expires_at.is_not(None), runs.c.attempt == lit(0), runs.c.ended_at.is_(None))


def may_start() -> ColumnElement[bool]:
    """Return the condition that a ready run has not expired."""
    return or_(runs.c.expires_at.is_(None), runs.c.attempt > lit(0), runs.c.expires_at > now_once())


NEXT_EXPIRY = select(func.min(runs.c.expires_at)).where(_unstarted).scalar_subquery()
_DUE = Statement(
    "expired_runs",
    select(runs.c.id, runs.c.ordering_key)
    .where(_unstarted, runs.c.expires_at <= now_once())
    .order_by(runs.c.expires_at)
    .limit(lit(EXPIRED_AT_ONCE)),
    purpose="Find runs that have not started by the time at which they expire.",
)


def _end(name: str, purpose: str, *conditions: ColumnElement[bool]) -> Statement:
    return Statement(
        name,
        update(runs)
        .where(member(runs.c.id, "ids"), *conditions)
        .values(
            status=lit(Status.CANCELLED),
            ended_at=now_us(),
            holds_key=False,
            last_seq=runs.c.last_seq + lit(1),
        )
        .returning(
            runs.c.id, runs.c.lane, runs.c.status, runs.c.attempt, runs.c.last_seq, runs.c.ordering_key,
            runs.c.holds_key, runs.c.tenant, runs.c.target, hooks_of_end(),
            has_endpoints(runs.c.tenant).label("notifies"),
            runs.c.expires_at,
        ),
        purpose=purpose,
    )  # fmt: skip


_EXPIRE = _end(
    "expire_runs",
    "Cancel runs that have not started by the time at which they expire.",
    runs.c.status.in_(_WAITING),
    _unstarted,
    runs.c.expires_at <= now_once(),
)
END_REPLACED = _end("cancel_replaced_runs", "Cancel waiting runs that others replace.", runs.c.status.in_(_WAITING))


async def expire_due(session: Session) -> list[ReleasedRun]:
    """Cancel runs that have expired, a bounded number at once; return them and the runs that became ready."""
    due = await session.fetch(_DUE)
    if not due:
        return []
    # Locks before rows: a run that ends passes its ordering key on.
    await session.lock(exclusive=key_locks(row["ordering_key"] for row in due))
    rows = await session.fetch(_EXPIRE, ids=session.texts(sorted(row["id"] for row in due)))
    message = "The run had not started by the time at which it expires."
    reasons = {row["id"]: ("expired", message) for row in rows}
    return await settle_early(session, rows, reasons)


async def settle_early(
    session: Session, rows: Sequence[Row], reasons: Mapping[str, tuple[str, str]]
) -> list[ReleasedRun]:
    """Store why runs were cancelled, as type and message, and settle their ends; return all runs that changed."""
    errors = [(row["id"], dump_json(dict(zip(("type", "message"), reasons[row["id"]], strict=True)))) for row in rows]
    await session.fetch(STORE_REASONS, errors)
    await append(
        session,
        [
            (row["id"], row["last_seq"], row["attempt"], EventType.DONE.value, None, f'{{"status":"{row["status"]}"}}')
            for row in rows
        ],
    )
    ended = [ReleasedRun(row["id"], row["lane"], Status(row["status"]), row["last_seq"]) for row in rows]
    count_ended(rows)
    return [*ended, *await settle_ended(session, rows)]
