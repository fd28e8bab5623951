"""Retention: finished runs are deleted after a while, whole and in small transactions. A live run is never touched."""

from __future__ import annotations

from sqlalchemy import Float, Table, bindparam, cast, delete, select
from sqlalchemy.types import BigInteger

from runlane.store.database import Session
from runlane.store.expressions import lit, member, now_once
from runlane.store.schema import (
    dead_letters,
    idempotency_keys,
    run_attempts,
    run_events,
    run_inputs,
    run_results,
    run_steps,
    runs,
)
from runlane.store.statement import Statement
from runlane.store.workers import FORGET

AT_ONCE = 500
DEAD_LETTERS_KEPT_TIMES = 3
_WORKERS_KEPT_SECONDS = 86400.0

_age = cast(bindparam("keep_seconds", type_=Float()) * 1_000_000, BigInteger)
# A dead run that blocks its ordering key is not over: somebody still has to decide about it.
_OLD = Statement(
    "old_runs",
    select(runs.c.id)
    .where(runs.c.ended_at.is_not(None), runs.c.ended_at < now_once() - _age, ~runs.c.holds_key)
    .order_by(runs.c.ended_at)
    .limit(lit(AT_ONCE))
    .with_for_update(skip_locked=True),
)
_OLD_LETTERS = Statement("delete_old_letters", delete(dead_letters).where(dead_letters.c.died_at < now_once() - _age))


def _delete_of(table: Table) -> Statement:
    return Statement(f"delete_{table.name}", delete(table).where(member(table.c.run_id, "ids")))


_DELETES = [
    *(_delete_of(table) for table in (run_inputs, run_results, run_attempts, run_steps, run_events, idempotency_keys)),
    Statement("delete_runs", delete(runs).where(member(runs.c.id, "ids"), runs.c.ended_at.is_not(None))),
]


async def delete_old(session: Session, keep_seconds: float) -> int:
    """Delete some of the runs that ended longer ago than that; how many."""
    ids = [row["id"] for row in await session.fetch(_OLD, keep_seconds=keep_seconds)]
    if ids:
        bound = session.texts(ids)
        for statement in _DELETES:
            await session.fetch(statement, ids=bound)
    return len(ids)


async def delete_leftovers(session: Session, keep_seconds: float) -> None:
    """Delete dead letters that are older still, and forget workers that ended a day ago."""
    await session.fetch(_OLD_LETTERS, keep_seconds=keep_seconds * DEAD_LETTERS_KEPT_TIMES)
    await session.fetch(FORGET, keep_seconds=_WORKERS_KEPT_SECONDS)
