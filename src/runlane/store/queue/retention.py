"""Retention: delete runs that ended long ago, in small transactions. A run that has not ended is never deleted.

A run is deleted completely; the messages of a chat stay with its session. The events of a run may be deleted earlier,
all but the last: `done` stays, so that readers of the stream reach its end, and `runs.first_seq` is the first number
that is left. Streams are cut in the order in which their runs ended, so the uncut streams are the newest: a scan back
from the newest finds the oldest of them, however many were cut before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Float, Integer, Table, bindparam, cast, delete, or_, select, update
from sqlalchemy.types import BigInteger

from runlane.domain.dead_letter import OPEN_KEPT_DAYS, LetterState
from runlane.store.chat.turns import COPY_TURN_RESULTS
from runlane.store.queue.admission import forget_turns
from runlane.store.queue.flow_starts import forget_flow_keys
from runlane.store.queue.start_tags import forget_shares
from runlane.store.queue.workers import DELETE_OLD_WORKERS
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_once
from runlane.store.sql.schema import (
    batch_items,
    dead_letters,
    idempotency_keys,
    run_attempts,
    run_calls,
    run_children,
    run_dependencies,
    run_events,
    run_inputs,
    run_results,
    run_steps,
    run_tags,
    run_waits,
    runs,
    thread_runs,
)
from runlane.store.sql.statement import Row, Statement
from runlane.store.webhooks.run_webhooks import delete_run_webhooks

AT_ONCE = 500
# Many letters may become old at once, when the retention is shortened.
LETTERS_AT_ONCE = 5_000
DEAD_LETTERS_KEPT_TIMES = 3
_WORKERS_KEPT_SECONDS = 86400.0
# About how many events one transaction deletes; a longer stream is cut in parts.
EVENTS_AT_ONCE = 5_000
_LONG = 1_000
# This many cut runs in a row prove that all older ones are cut too.
LOOK_BACK = 1_000

_age = cast(bindparam("keep_seconds", type_=Float()) * 1_000_000, BigInteger)
_ended_long_ago = (runs.c.ended_at.is_not(None), runs.c.ended_at < now_once() - _age)
# A failed run that blocks its ordering key is not deleted, because an operator still has to decide about it.
_OLD = Statement(
    "old_runs",
    select(runs.c.id)
    .where(*_ended_long_ago, ~runs.c.holds_key)
    .order_by(runs.c.ended_at)
    .limit(lit(AT_ONCE))
    .with_for_update(skip_locked=True),
    purpose="Find ended runs past their retention.",
)
_OPEN_LETTERS_US = OPEN_KEPT_DAYS * 86400 * 1_000_000
_HANDLED = [lit(LetterState.RESOLVED), lit(LetterState.DISCARDED)]
_old_letters = (
    select(dead_letters.c.run_id)
    .where(
        dead_letters.c.died_at < now_once() - _age,
        or_(dead_letters.c.state.in_(_HANDLED), dead_letters.c.died_at < now_once() - lit(_OPEN_LETTERS_US)),
    )
    .order_by(dead_letters.c.died_at)
    .limit(lit(LETTERS_AT_ONCE))
)
_OLD_LETTERS = Statement(
    "delete_old_letters",
    delete(dead_letters).where(dead_letters.c.run_id.in_(_old_letters)).returning(dead_letters.c.run_id),
    purpose="Delete dead letters past their retention; those that are not handled are kept longer.",
)


def _delete_of(table: Table) -> Statement:
    return Statement(
        f"delete_{table.name}",
        delete(table).where(member(table.c.run_id, "ids")),
        purpose=f"Delete the rows of runs in {table.name}.",
    )


_DELETES = [
    *(
        _delete_of(table)
        for table in (
            run_inputs,
            run_results,
            run_attempts,
            run_steps,
            run_calls,
            run_waits,
            run_events,
            run_children,
            run_dependencies,
            run_tags,
            batch_items,
            idempotency_keys,
            thread_runs,
        )
    ),
    Statement(
        "delete_runs",
        delete(runs).where(member(runs.c.id, "ids"), runs.c.ended_at.is_not(None)),
        purpose="Delete ended runs.",
    ),
]

_before = bindparam("before", type_=BigInteger())
_BACKWARDS = Statement(
    "ended_before",
    select(runs.c.ended_at, (runs.c.first_seq < runs.c.last_seq).label("whole"))
    .where(*_ended_long_ago, runs.c.ended_at < _before)
    .order_by(runs.c.ended_at.desc())
    .limit(lit(LOOK_BACK)),
    purpose="Look back over ended runs, newest first, for streams that are still whole.",
)
# Waits for locked runs: a run that is skipped might not be found again.
_TO_CUT = Statement(
    "runs_to_cut",
    select(runs.c.id, runs.c.first_seq, runs.c.last_seq)
    .where(
        *_ended_long_ago,
        runs.c.ended_at >= bindparam("since", type_=BigInteger()),
        runs.c.first_seq < runs.c.last_seq,
    )
    .order_by(runs.c.ended_at)
    .limit(lit(AT_ONCE))
    .with_for_update(),
    purpose="Find ended runs whose events are to be deleted.",
)
_MOVE_ALL = Statement(
    "move_first_events",
    update(runs).where(member(runs.c.id, "ids"), runs.c.ended_at.is_not(None)).values(first_seq=runs.c.last_seq),
    purpose="Note that only the last event of ended runs is kept.",
)
_first_of_run = select(runs.c.first_seq).where(runs.c.id == run_events.c.run_id).scalar_subquery()
_CUT_ALL = Statement(
    "cut_events",
    delete(run_events).where(member(run_events.c.run_id, "ids"), run_events.c.seq < _first_of_run),
    purpose="Delete the events before the first kept one of runs.",
)
_first = bindparam("first", type_=Integer())
_MOVE_ONE = Statement(
    "move_first_event",
    update(runs).where(runs.c.id == bindparam("run_id"), runs.c.ended_at.is_not(None)).values(first_seq=_first),
    purpose="Note the first kept event of an ended run.",
)
_CUT_ONE = Statement(
    "cut_events_of_run",
    delete(run_events).where(run_events.c.run_id == bindparam("run_id"), run_events.c.seq < _first),
    purpose="Delete the events before a sequence number of a run.",
)


@dataclass(frozen=True, slots=True)
class DeletedBatch:
    """The result of a transaction. `more` is True when there may be more to delete."""

    events: int
    more: bool


async def delete_old(session: Session, keep_seconds: float) -> int:
    """Delete some of the runs that ended more than `keep_seconds` ago; return how many."""
    ids = [row["id"] for row in await session.fetch(_OLD, keep_seconds=keep_seconds)]
    if ids:
        await session.fetch(COPY_TURN_RESULTS, ids=session.texts(ids))
        await delete_runs(session, ids)
    return len(ids)


async def delete_runs(session: Session, ids: Sequence[str]) -> None:
    """Delete these ended runs with everything that belongs only to them."""
    bound = session.texts(ids)
    for statement in _DELETES:
        await session.fetch(statement, ids=bound)
    await delete_run_webhooks(session, ids)


async def delete_leftovers(session: Session, keep_seconds: float) -> bool:
    """Delete dead letters past their retention, workers that ended a day ago, and rows without an effect.

    Return whether there may be more.
    """
    await forget_shares(session)
    await forget_turns(session)
    more = await forget_flow_keys(session)
    letters = await session.fetch(_OLD_LETTERS, keep_seconds=keep_seconds * DEAD_LETTERS_KEPT_TIMES)
    await session.fetch(DELETE_OLD_WORKERS, keep_seconds=_WORKERS_KEPT_SECONDS)
    return more or len(letters) == LETTERS_AT_ONCE


async def oldest_to_cut(session: Session, keep_seconds: float, before: int) -> tuple[int, bool]:
    """Scan backwards from a time; return the time reached, and whether older runs may still have to be cut."""
    rows = await session.fetch(_BACKWARDS, keep_seconds=keep_seconds, before=before)
    if not rows:
        return before, False
    return rows[-1]["ended_at"], len(rows) == LOOK_BACK and any(row["whole"] for row in rows)


async def cut_events(session: Session, keep_seconds: float, since: int) -> DeletedBatch:
    """Delete events, except the last, of some runs that ended more than `keep_seconds` ago and not before `since`."""
    rows = await session.fetch(_TO_CUT, keep_seconds=keep_seconds, since=since)
    budget = EVENTS_AT_ONCE
    short: list[str] = []
    for row in rows:
        if budget <= 0:
            break
        length = row["last_seq"] - row["first_seq"]
        if length > _LONG:
            length = await _cut_one(session, row, budget)
        else:
            short.append(row["id"])
        budget -= length
    if short:
        bound = session.texts(short)
        await session.fetch(_MOVE_ALL, ids=bound)
        await session.fetch(_CUT_ALL, ids=bound)
    return DeletedBatch(EVENTS_AT_ONCE - budget, more=budget <= 0 or len(rows) == AT_ONCE)


async def _cut_one(session: Session, row: Row, budget: int) -> int:
    first = min(row["last_seq"], row["first_seq"] + budget)
    await session.fetch(_MOVE_ONE, run_id=row["id"], first=first)
    await session.fetch(_CUT_ONE, run_id=row["id"], first=first)
    return first - row["first_seq"]
