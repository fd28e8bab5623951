"""Attempts: what became of each, and how long a run has been executed in all."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, func, select

from runlane.store.queue.dead_letters import attempt_value
from runlane.store.sql.database import Database, read
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import run_attempts, runs
from runlane.store.sql.statement import Statement

# A column beside those of `runs`: the start of the first attempt, by primary key. While that attempt runs, it has no
# row, and its start is that of the latest one.
STARTED_AT = func.coalesce(
    select(run_attempts.c.started_at)
    .where(run_attempts.c.run_id == runs.c.id, run_attempts.c.attempt == lit(1))
    .correlate(runs)
    .scalar_subquery(),
    runs.c.claimed_at,
).label("started_at")

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


async def read_attempts(database: Database, run_id: str) -> list[dict[str, Any]]:
    """The ended attempts of a run, in order."""
    return [attempt_value(row) for row in await read(database, _ATTEMPTS, run_id=run_id)]


async def running_seconds(database: Database, run_id: str) -> float:
    """How long the ended attempts of a run took together; waiting between them does not count."""
    return float((await database.query(_RUNNING, run_id=run_id))[0]["us"]) / 1_000_000
