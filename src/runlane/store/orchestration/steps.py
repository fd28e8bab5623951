"""Step records: the finished steps of a run. A new attempt continues after the last one.

A Python task has one record, its checkpoint, which each later checkpoint replaces. An orchestration has one record per
executed step, numbered in the order in which they were stored, and periodically a snapshot of its position, so that a
takeover reads only the records after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    FromClause,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal,
    or_,
    select,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.text import load_json
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit, now_us, upsert
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import run_steps, runs
from runlane.store.sql.statement import Row, Statement

CHECKPOINT_PATH = "checkpoint"
# No step can have this path: ids of steps begin with a letter or a digit.
SNAPSHOT_PATH = "_cursor"
# The size of a page where the caller does not give one.
MAX_READ = 1_000_000


class StepOutcome(StrEnum):
    """The outcome of a recorded step. The values are stored and must not change."""

    DONE = "done"
    RETRYING = "retrying"
    HANDLED = "handled"
    FAILED = "failed"
    SNAPSHOT = "snapshot"
    SAVED = "saved"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One executed step. Strings are JSON. A record without a number, a task's checkpoint in a step, is not replayed.

    `handled` failures went to an error route and are replayed; a `failed` step ended the run and is performed again
    when the run is retried.
    """

    path: str
    no: int | None
    step_id: str
    kind: str
    outcome: StepOutcome
    output: str | None = None
    route: str | None = None
    error: str | None = None
    tries: int = 0
    input: str | None = None
    duration_us: int = 0
    cost_usd: float | None = None
    tokens: int = 0
    attempt: int = 0

    def row(self, run_id: str, attempt: int) -> tuple[Any, ...]:
        """Return the record as a member of RECORD_STEPS."""
        return (
            run_id, self.path, attempt, self.kind, self.output, self.no, self.step_id, self.outcome.value, self.route,
            self.error, self.tries, self.input, self.duration_us, self.cost_usd, self.tokens,
        )  # fmt: skip


def _save(batch: FromClause) -> Executable:
    b = batch.c
    fence = and_(runs.c.id == b.run_id, runs.c.attempt == b.attempt)
    statement = upsert(run_steps).from_select(
        ["run_id", "path", "attempt", "kind", "output", "ended_at"],
        # The condition also keeps SQLite's parser from reading ON CONFLICT as a join.
        select(b.run_id, b.path, b.attempt, b.kind, b.output, now_us())
        .select_from(batch.join(runs, fence))
        .where(b.attempt > 0),
    )
    return statement.on_conflict_do_update(
        index_elements=["run_id", "path"],
        set_={
            "attempt": statement.excluded.attempt,
            "output": statement.excluded.output,
            "ended_at": statement.excluded.ended_at,
        },
    )


SAVE_STEPS = Statement(
    "save_steps",
    _save,
    {"run_id": Text(), "path": Text(), "attempt": Integer(), "kind": Text(), "output": Text()},
    purpose="Store checkpoints of an attempt, through the fence.",
)

_RECORDED = {
    "run_id": Text(),
    "path": Text(),
    "attempt": Integer(),
    "kind": Text(),
    "output": Text(),
    "no": Integer(),
    "step_id": Text(),
    "outcome": Text(),
    "route": Text(),
    "error": Text(),
    "tries": Integer(),
    "input": Text(),
    "duration_us": BigInteger(),
    "cost_usd": Float(),
    "tokens": Integer(),
}


# A try that the run has paid for and that is followed by another one. A fork has not paid for copied records.
_paid = and_(
    run_steps.c.attempt > 0,
    or_(run_steps.c.outcome == lit(StepOutcome.RETRYING), run_steps.c.outcome == lit(StepOutcome.FAILED)),
)


def _sum(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the sum; null where neither is known."""
    return case((one.is_(None), other), (other.is_(None), one), else_=one + other)


def last_of_each(steps: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the last record of each path, with the cost of all, since a statement cannot change a row twice."""
    found: dict[str, StepRecord] = {}
    for step in steps:
        before = found.pop(step.path, None)
        if before is not None and before.outcome in (StepOutcome.RETRYING, StepOutcome.FAILED):
            costs = [cost for cost in (before.cost_usd, step.cost_usd) if cost is not None]
            step = replace(step, cost_usd=sum(costs) if costs else None, tokens=before.tokens + step.tokens)  # noqa: PLW2901
        found[step.path] = step
    return list(found.values())


def _record_steps(batch: FromClause) -> Executable:
    b = batch.c
    fence = and_(runs.c.id == b.run_id, runs.c.attempt == b.attempt)
    statement = upsert(run_steps).from_select(
        [*_RECORDED, "ended_at"],
        select(*(b[name] for name in _RECORDED), now_us()).select_from(batch.join(runs, fence)).where(b.attempt > 0),
    )
    # The second try of a step replaces the record of the first and keeps its cost; a later snapshot replaces the
    # previous one.
    again = statement.excluded
    values: dict[str, ColumnElement[Any]] = {
        name: again[name] for name in (*_RECORDED, "ended_at") if name not in ("run_id", "path")
    }
    for name in ("cost_usd", "tokens"):
        values[name] = case((_paid, _sum(run_steps.c[name], again[name])), else_=again[name])
    return statement.on_conflict_do_update(index_elements=["run_id", "path"], set_=values)


RECORD_STEPS = Statement(
    "record_steps", _record_steps, _RECORDED, purpose="Store step records of an attempt, through the fence."
)
_no = func.coalesce(run_steps.c.no, lit(0))
_after_no = bindparam("after_no", type_=Integer())
_READ_STEPS = Statement(
    "read_steps",
    select(run_steps)
    .where(
        run_steps.c.run_id == bindparam("run_id"),
        run_steps.c.path != lit(SNAPSHOT_PATH),
        or_(_no > _after_no, and_(_no == _after_no, run_steps.c.path > bindparam("after_path", type_=Text()))),
    )
    .order_by(_no, run_steps.c.path)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read a page of the step records of a run.",
)
_snapshot = run_steps.alias("snapshot")
_last_snapshot = (
    select(_snapshot.c.no)
    .where(_snapshot.c.run_id == bindparam("run_id"), _snapshot.c.path == lit(SNAPSHOT_PATH))
    .scalar_subquery()
)
# The input of a replay: the newest snapshot, and the records after it.
_replayed = select(
    run_steps.c.path,
    run_steps.c.attempt,
    run_steps.c.no,
    run_steps.c.step_id,
    run_steps.c.kind,
    run_steps.c.outcome,
    run_steps.c.output,
    run_steps.c.route,
    run_steps.c.error,
    run_steps.c.tries,
    run_steps.c.cost_usd,
    run_steps.c.tokens,
)
_READ_WAY = Statement(
    "read_replay",
    _replayed.where(
        run_steps.c.run_id == bindparam("run_id"),
        run_steps.c.no.is_not(None),
        or_(run_steps.c.path == lit(SNAPSHOT_PATH), run_steps.c.no > func.coalesce(_last_snapshot, lit(0))),
    ).order_by(run_steps.c.no, case((run_steps.c.path == lit(SNAPSHOT_PATH), lit(0)), else_=lit(1))),
    purpose="Read the snapshot of a run and the step records after it.",
)
_READ_RECORDS = Statement(
    "read_all_records",
    _replayed.where(
        run_steps.c.run_id == bindparam("run_id"),
        run_steps.c.no.is_not(None),
        run_steps.c.path != lit(SNAPSHOT_PATH),
    ).order_by(run_steps.c.no, run_steps.c.path),
    purpose="Read every step record of a run.",
)
_READ_SAVED = Statement(
    "read_checkpoint",
    select(run_steps.c.output).where(run_steps.c.run_id == bindparam("run_id"), run_steps.c.path == bindparam("path")),
    purpose="Read one checkpoint of a run.",
)

_READ_VALUES = Statement(
    "read_step_values",
    select(run_steps.c.input, run_steps.c.output, run_steps.c.error).where(
        run_steps.c.run_id == bindparam("run_id"), run_steps.c.path == bindparam("path")
    ),
    purpose="Read the values of one step of a run.",
)


def _copy(batch: FromClause) -> Executable:
    b = batch.c
    copied = [name for name in _RECORDED if name not in ("run_id", "attempt")]
    return insert(run_steps).from_select(
        ["run_id", "attempt", *copied, "ended_at"],
        select(b.to_run, literal(0, Integer()), *(run_steps.c[name] for name in copied), run_steps.c.ended_at)
        .select_from(batch.join(run_steps, run_steps.c.run_id == b.from_run))
        .where(
            run_steps.c.no < b.before,
            run_steps.c.path != lit(SNAPSHOT_PATH),
            run_steps.c.outcome != lit(StepOutcome.FAILED),
        ),
    )


# For a fork: the records up to a step, as records of the new run.
COPY_STEPS = Statement(
    "copy_steps",
    _copy,
    {"from_run": Text(), "to_run": Text(), "before": Integer()},
    purpose="Copy the step records of a run to its fork.",
)


async def read_steps(
    database: Database, run_id: str, *, after: tuple[int, str] = (-1, ""), limit: int = MAX_READ
) -> list[dict[str, Any]]:
    """Return the recorded steps of a run in order; `after` is number and path of the last one read."""
    rows = await database.query(_READ_STEPS, run_id=run_id, after_no=after[0], after_path=after[1], limit=limit)
    return [_row_to_dict(row) for row in rows]


async def read_saved(database: Database, run_id: str, path: str) -> str | None:
    """Return the checkpoint under a path, as JSON."""
    rows = await database.query(_READ_SAVED, run_id=run_id, path=path)
    return rows[0]["output"] if rows else None


async def read_step_value(database: Database, run_id: str, path: str, name: str) -> tuple[bool, object]:
    """Return whether a step is recorded, and one of its values: input, output or error."""
    for row in await database.query(_READ_VALUES, run_id=run_id, path=path):
        return True, None if row[name] is None else load_json(row[name])
    return False, None


async def read_replay_records(database: Database, run_id: str) -> list[StepRecord]:
    """Return the newest snapshot, if any, and the records after it, in order."""
    return [_value(row) for row in await database.query(_READ_WAY, run_id=run_id)]


async def read_all_records(database: Database, run_id: str) -> list[StepRecord]:
    """Return every record, in order, without snapshots."""
    return [_value(row) for row in await database.query(_READ_RECORDS, run_id=run_id)]


def _value(row: Row) -> StepRecord:
    outcome, tries, tokens = StepOutcome(row["outcome"]), row["tries"] or 0, row["tokens"] or 0
    return from_row(StepRecord, row, outcome=outcome, tries=tries, tokens=tokens)


def _row_to_dict(row: Row) -> dict[str, Any]:
    known = ("path", "no", "kind", "attempt", "step_id", "outcome", "route", "tries", "tokens")
    return {
        **{name: row[name] for name in known},
        **{name: None if row[name] is None else load_json(row[name]) for name in ("input", "output", "error")},
        "cost_usd": row["cost_usd"],
        "duration_us": row["duration_us"],
        "ended_at_us": row["ended_at"],
    }
