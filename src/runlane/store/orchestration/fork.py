"""Forks: a new run that starts with the finished steps of another run, up to a chosen step."""

from __future__ import annotations

from sqlalchemy import bindparam, select

from runlane.domain.run import Accepted
from runlane.errors import NotFound
from runlane.store.orchestration.steps import COPY_STEPS
from runlane.store.queue.accept import NewRun, accept
from runlane.store.queue.ordering import key_locks
from runlane.store.sql.database import Database, Session
from runlane.store.sql.schema import run_inputs, run_steps, runs
from runlane.store.sql.statement import Row, Statement

_SOURCE = Statement(
    "fork_source",
    select(
        runs.c.target,
        runs.c.tenant,
        runs.c.lane,
        runs.c.max_attempts,
        runs.c.max_losses,
        run_inputs.c.input,
        run_inputs.c.plan,
    )
    .select_from(runs.join(run_inputs, run_inputs.c.run_id == runs.c.id))
    .where(runs.c.id == bindparam("run_id")),
    purpose="Read the run that is forked.",
)
_STEP = Statement(
    "fork_step",
    select(run_steps.c.no).where(
        run_steps.c.run_id == bindparam("run_id"),
        run_steps.c.path == bindparam("path"),
        run_steps.c.no.is_not(None),
    ),
    purpose="Read the step at which a run is forked.",
)


async def read_source(database: Database, run_id: str) -> Row | None:
    """Return what a fork needs of the run that it is made from."""
    rows = await database.query(_SOURCE, run_id=run_id)
    return rows[0] if rows else None


async def step_number(database: Database, run_id: str, path: str) -> int:
    """Return the number of a recorded step."""
    rows = await database.query(_STEP, run_id=run_id, path=path)
    if not rows:
        raise NotFound(f"Run {run_id} has no recorded step {path!r}. See: GET /api/v2/runs/{run_id}/steps")
    return int(rows[0]["no"])


async def fork_run(database: Database, source: str, before: int, new_run: NewRun) -> Accepted:
    """Store the new run together with the records of the source before this number."""

    async def work(session: Session) -> Accepted:
        await session.lock(exclusive=key_locks([new_run.ordering_key]))
        (verdict,) = await accept(session, [new_run])
        if not isinstance(verdict, Accepted):
            raise verdict
        if not verdict.replayed:
            await session.fetch(COPY_STEPS, [(source, new_run.id, before)])
        return verdict

    return await database.transact(work)
