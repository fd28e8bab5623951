"""Read runs and their attempts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sqlalchemy import bindparam, func, select

from runlane.domain.run import Run, RunHook, Status
from runlane.domain.tenant import bare_key
from runlane.domain.text import load_json
from runlane.errors import RunNotFound
from runlane.store.queue.dead_letters import attempt_value
from runlane.store.queue.dependencies import read_dependencies
from runlane.store.queue.tags import tags_of
from runlane.store.queue.waiting_reasons import read_waiting_reason
from runlane.store.sql.database import Database, read
from runlane.store.sql.expressions import lit
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import chat_turns, run_attempts, run_inputs, run_results, runs
from runlane.store.sql.statement import Row, Statement

# An additional column, read by primary key: the start of the first attempt. While this attempt runs, it has no row, and
# its start is the time of the latest claim.
STARTED_AT = func.coalesce(
    select(run_attempts.c.started_at)
    .where(run_attempts.c.run_id == runs.c.id, run_attempts.c.attempt == lit(1))
    .correlate(runs)
    .scalar_subquery(),
    runs.c.claimed_at,
).label("started_at")

_TRACEPARENT_PARTS: Final = 4
_holder = runs.alias("holder")
# The holder is found by the unique index on holders, and only for a blocked run.
_blocked_by = (
    select(_holder.c.id)
    .where(
        runs.c.status == lit(Status.BLOCKED),
        _holder.c.ordering_key == runs.c.ordering_key,
        _holder.c.holds_key,
        _holder.c.id != runs.c.id,
    )
    .correlate(runs)
    .scalar_subquery()
    .label("blocked_by")
)
_chat_session = (
    select(chat_turns.c.session_id).where(chat_turns.c.run_id == runs.c.id).correlate(runs).scalar_subquery()
).label("session_id")
_READ = Statement(
    "read_run",
    select(
        runs,
        run_inputs.c.input,
        run_inputs.c.plan,
        run_inputs.c.origin,
        run_inputs.c.trace,
        run_results.c.result,
        run_results.c.error,
        run_results.c.state,
        _blocked_by,
        _chat_session,
        STARTED_AT,
    )
    .select_from(
        runs.outerjoin(run_inputs, run_inputs.c.run_id == runs.c.id).outerjoin(
            run_results, run_results.c.run_id == runs.c.id
        )
    )
    .where(runs.c.id == bindparam("run_id")),
    purpose="Read a run with its input, result and error.",
)
_of_run = run_attempts.c.run_id == bindparam("run_id")
_ATTEMPTS = Statement(
    "read_attempts",
    select(run_attempts).where(_of_run).order_by(run_attempts.c.attempt),
    purpose="Read the ended attempts of a run.",
)
_RUNNING = Statement(
    "running_time",
    select(func.coalesce(func.sum(run_attempts.c.ended_at - run_attempts.c.started_at), lit(0)).label("us")).where(
        _of_run
    ),
    purpose="Sum the time that the ended attempts of a run were executing.",
)


async def find_run(database: Database, run_id: str) -> Run:
    """Return a run with its input and result."""
    rows = await read(database, _READ, run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    run = run_value(rows[0], whole=True)
    if rows[0]["hooks"] & RunHook.AFTER:
        run = replace(run, after=await read_dependencies(database, run_id))
    if not run.status.waiting:
        return run
    return replace(run, waiting_reason=await read_waiting_reason(database, run, rows[0]))


async def read_attempts(database: Database, run_id: str) -> list[dict[str, Any]]:
    """Return the ended attempts of a run, in order."""
    return [attempt_value(row) for row in await read(database, _ATTEMPTS, run_id=run_id)]


async def running_seconds(database: Database, run_id: str) -> float:
    """Return how long the ended attempts of a run took together, without the waits between them."""
    return float((await database.query(_RUNNING, run_id=run_id))[0]["us"]) / 1_000_000


def run_value(row: Row, *, whole: bool) -> Run:
    """Return the run of a row."""
    key = row["ordering_key"]
    known: dict[str, Any] = {
        "status": Status(row["status"]),
        "ordering_key": None if key is None else bare_key(key),
        "tags": tags_of(row["tags"]),
    }
    if not whole:
        return from_row(Run, row, **known)
    plan: dict[str, Any] = {} if row["plan"] is None else load_json(row["plan"])
    fork: dict[str, Any] | None = plan.get("fork")
    origin: dict[str, Any] = {} if row["origin"] is None else load_json(row["origin"])
    return from_row(
        Run,
        row,
        json=("input", "result", "error", "state", "origin"),
        **known,
        plan=plan or None,
        definition=plan.get("pins", {}).get(row["target"]),
        forked_from=None if fork is None else {"run_id": fork["run_id"], "from_step": fork["path"]},
        parent=plan.get("parent"),
        schedule_id=origin.get("schedule"),
        slot_us=origin.get("slot"),
        previous_slot_us=origin.get("previous_slot"),
        trace_id=_trace_id(row["trace"]),
    )


def _trace_id(traceparent: str | None) -> str | None:
    """Return the second part of a stored traceparent. Earlier versions stored any string that an App was given."""
    parts = [] if traceparent is None else traceparent.split("-")
    return parts[1] if len(parts) >= _TRACEPARENT_PARTS else None
