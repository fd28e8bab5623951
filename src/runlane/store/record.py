"""What a worker writes about its run: events, checkpoints, progress and the end, all behind the fence.

RECORD is the fence: it names the run, the attempt and `running`, and only the members it returns have won. The
inserts that follow in the same transaction are for those members alone. A member that lost changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Float,
    FromClause,
    Integer,
    Text,
    and_,
    case,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.model.event import EventType
from runlane.model.run import Status
from runlane.model.text import dump_json
from runlane.store.database import Session
from runlane.store.dead_letters import bury
from runlane.store.events import APPEND_FENCED, EventRow
from runlane.store.ordering import Released, release_next
from runlane.store.schema import run_attempts, run_results, runs
from runlane.store.statement import MARK, Row, Statement, lit, now_us
from runlane.store.steps import CHECKPOINT_PATH, SAVE_STEPS


class Outcome(StrEnum):
    """How an attempt ended; stored with it."""

    COMPLETED = "completed"
    FAILED = "failed"
    RETRY_LATER = "retry_later"
    HANDED_BACK = "handed_back"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of an attempt: where its run goes, and what is kept. `result` and `error` are JSON text."""

    outcome: Outcome
    status: Status
    result: str | None = None
    error: str | None = None
    delay_us: int | None = None

    @property
    def failures(self) -> int:
        """1 when the attempt counts against the run's attempts."""
        return 1 if self.outcome is Outcome.FAILED else 0


@dataclass(slots=True)
class Entry:
    """Everything one attempt wants written in one transaction."""

    run_id: str
    attempt: int
    lane: str
    ordering_key: str | None = None
    events: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    checkpoint: str | None = None
    progress: float | None = None
    progress_note: str | None = None
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The verdict on an entry that won: the number of its last event, its run's status, keys it freed."""

    last_seq: int
    status: Status


_TERMINAL = tuple(lit(status) for status in sorted(s for s in Status if s.terminal))


def _record(batch: FromClause) -> Executable:
    b = batch.c
    # A run that somebody cancelled is not put back: it ends here.
    new_status = case(
        (b.status.is_(None), runs.c.status),
        (
            and_(
                runs.c.cancel_requested_at.is_not(None),
                b.status.in_([lit(Status.QUEUED), lit(Status.SCHEDULED), lit(Status.PAUSED)]),
            ),
            lit(Status.CANCELLED),
        ),
        else_=b.status,
    )
    ends = new_status.in_(_TERMINAL)
    keeps_key = and_(new_status == lit(Status.FAILED), runs.c.on_dead == lit("block"))
    return (
        update(runs)
        .where(runs.c.id == b.run_id, runs.c.attempt == b.attempt, runs.c.status == lit(Status.RUNNING))
        .values(
            status=new_status,
            failures=runs.c.failures + b.failures,
            due_at=now_us() + b.delay_us,
            ended_at=case((ends, now_us()), else_=None),
            last_seq=runs.c.last_seq + b.events + case((ends, lit(1)), else_=lit(0)),
            holds_key=case((or_(~ends, keeps_key), runs.c.holds_key), else_=False),
            progress=func.coalesce(b.progress, runs.c.progress),
            progress_note=func.coalesce(b.progress_note, runs.c.progress_note),
        )
        .returning(
            runs.c.id,
            runs.c.attempt,
            runs.c.status,
            runs.c.last_seq,
            runs.c.claimed_at,
            runs.c.worker_id,
            runs.c.ordering_key,
            runs.c.holds_key,
            MARK,
        )
    )


RECORD = Statement(
    "record",
    _record,
    {
        "run_id": Text(),
        "attempt": Integer(),
        "status": Text(),
        "failures": Integer(),
        "delay_us": BigInteger(),
        "events": Integer(),
        "progress": Float(),
        "progress_note": Text(),
    },
)


def _end_attempts(batch: FromClause) -> Executable:
    b = batch.c
    fence = and_(runs.c.id == b.run_id, runs.c.attempt == b.attempt)
    return insert(run_attempts).from_select(
        ["run_id", "attempt", "worker_id", "started_at", "ended_at", "outcome", "error"],
        select(b.run_id, b.attempt, runs.c.worker_id, runs.c.claimed_at, now_us(), b.outcome, b.error).select_from(
            batch.join(runs, fence)
        ),
    )


END_ATTEMPTS = Statement(
    "end_attempts",
    _end_attempts,
    {"run_id": Text(), "attempt": Integer(), "outcome": Text(), "error": Text()},
)


def _store_results(batch: FromClause) -> Executable:
    b = batch.c
    fence = and_(runs.c.id == b.run_id, runs.c.attempt == b.attempt)
    return insert(run_results).from_select(
        ["run_id", "result", "error"],
        select(b.run_id, b.result, b.error).select_from(batch.join(runs, fence)),
    )


STORE_RESULTS = Statement(
    "store_results",
    _store_results,
    {"run_id": Text(), "attempt": Integer(), "result": Text(), "error": Text()},
)


async def record(session: Session, entries: Sequence[Entry]) -> tuple[dict[tuple[str, int], Recorded], list[Released]]:
    """Write the entries; those missing from the answer lost their run. One entry per run and attempt.

    The caller holds the locks of the ordering keys of every entry that finishes.
    """
    # By id, so that two transactions over the same runs lock them in the same order.
    ordered = sorted(entries, key=lambda entry: (entry.run_id, entry.attempt))
    rows = await session.fetch(RECORD, [_member(entry) for entry in ordered])
    won: dict[tuple[str, int], Row] = {(row["id"], row["attempt"]): row for row in rows}
    winners = [(entry, won[entry.run_id, entry.attempt]) for entry in ordered if (entry.run_id, entry.attempt) in won]
    events: list[EventRow] = []
    checkpoints: list[tuple[Any, ...]] = []
    finishes: list[tuple[Entry, Finish, Row]] = []
    for entry, row in winners:
        events.extend(_numbered(entry, row))
        if entry.checkpoint is not None:
            checkpoints.append((entry.run_id, CHECKPOINT_PATH, entry.attempt, "checkpoint", entry.checkpoint))
        if entry.finish is not None:
            finishes.append((entry, entry.finish, row))
    await session.fetch(SAVE_STEPS, checkpoints)
    await session.fetch(APPEND_FENCED, events)
    released = await _finish(session, finishes)
    verdicts = {key: Recorded(row["last_seq"], Status(row["status"])) for key, row in won.items()}
    return verdicts, released


async def _finish(session: Session, finishes: Sequence[tuple[Entry, Finish, Row]]) -> list[Released]:
    if not finishes:
        return []
    await session.fetch(
        END_ATTEMPTS,
        [(entry.run_id, entry.attempt, finish.outcome.value, finish.error) for entry, finish, _ in finishes],
    )
    ended = [(entry, finish, row) for entry, finish, row in finishes if Status(row["status"]).terminal]
    await session.fetch(
        STORE_RESULTS,
        [(entry.run_id, entry.attempt, finish.result, finish.error) for entry, finish, _ in ended],
    )
    dead = [row["id"] for _, _, row in ended if row["status"] == Status.FAILED]
    if dead:
        await bury(session, dead)
    return await release_next(
        session, [row["ordering_key"] for _, _, row in ended if row["ordering_key"] and not row["holds_key"]]
    )


def _member(entry: Entry) -> tuple[Any, ...]:
    finish = entry.finish
    return (
        entry.run_id,
        entry.attempt,
        finish.status.value if finish else None,
        finish.failures if finish else 0,
        finish.delay_us if finish else None,
        len(entry.events),
        entry.progress,
        entry.progress_note,
    )


def _numbered(entry: Entry, row: Row) -> list[EventRow]:
    status = Status(row["status"])
    named = entry.events
    if status.terminal:
        named = [*named, (EventType.DONE.value, dump_json({"status": status.value}))]
    first = row["last_seq"] - len(named) + 1
    return [(entry.run_id, first + offset, entry.attempt, kind, data) for offset, (kind, data) in enumerate(named)]
