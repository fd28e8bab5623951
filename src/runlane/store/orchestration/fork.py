"""Runs that repeat another one: a fork starts with its finished steps up to a chosen step, a restart with none."""

from __future__ import annotations

from sqlalchemy import bindparam, exists, select

from runlane.domain.run import Accepted, RunHook
from runlane.domain.tags import fork_mark
from runlane.errors import NotFound, RunNotFound
from runlane.store.orchestration.calls import COPY_UNSETTLED
from runlane.store.orchestration.steps import COPY_STEPS
from runlane.store.queue.accept import NewRun, accept
from runlane.store.queue.dead_letters import letter_replaced
from runlane.store.queue.limit_gate import accept_locks
from runlane.store.queue.tags import add_tags
from runlane.store.sql.database import Database, Session
from runlane.store.sql.schema import chat_turns, run_inputs, run_steps, runs
from runlane.store.sql.statement import Row, Statement

_SOURCE = Statement(
    "fork_source",
    select(
        runs.c.id,
        runs.c.target,
        runs.c.tenant,
        runs.c.lane,
        runs.c.status,
        runs.c.attempt,
        runs.c.priority,
        runs.c.ordering_key,
        runs.c.on_dead,
        runs.c.max_attempts,
        runs.c.max_losses,
        run_inputs.c.input,
        run_inputs.c.plan,
        run_inputs.c.origin,
        run_inputs.c.limits,
        runs.c.unique_key,
        runs.c.fairness_key,
        runs.c.tags,
        exists().where(chat_turns.c.run_id == runs.c.id).label("is_turn"),
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


async def read_source(database: Database, run_id: str) -> Row:
    """Return the columns that a fork or a restart needs of the run that it repeats."""
    rows = await database.query(_SOURCE, run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    return rows[0]


async def step_number(database: Database, run_id: str, path: str) -> int:
    """Return the number of a recorded step."""
    rows = await database.query(_STEP, run_id=run_id, path=path)
    if not rows:
        raise NotFound(f"Run {run_id} has no recorded step {path!r}. See: GET /api/v2/runs/{run_id}/steps")
    return int(rows[0]["no"])


async def fork_run(database: Database, source: str, before: int, new_run: NewRun, *, actor: str) -> Accepted:
    """Store the new run together with the records of the source before this number."""

    async def work(session: Session) -> Accepted:
        await session.lock(exclusive=accept_locks([new_run]))
        return await repeat_in(session, source, new_run, before=before, actor=actor)

    return await database.transact(work)


async def repeat_in(
    session: Session, source: str, new_run: NewRun, *, before: int | None = None, actor: str
) -> Accepted:
    """Store a run that repeats another one, whose dead letter follows the new run from now on.

    With `before`, the new run gets the records of the source before this number. The caller holds the lock of the new
    run's ordering key.
    """
    (verdict,) = await accept(session, [new_run], holds_limits=True)
    if not isinstance(verdict, Accepted):
        raise verdict
    if not verdict.replayed:
        if before is not None:
            # A call whose effect is unknown is not repeated before a person has decided about it.
            await session.fetch(COPY_UNSETTLED, [(source, new_run.id)])
            await session.fetch(COPY_STEPS, [(source, new_run.id, before)])
            await add_tags(session, [(new_run.tenant, new_run.id, (fork_mark(source),))])
        if new_run.hooks & RunHook.DEAD_LETTER:
            await letter_replaced(session, source, new_run.id, actor)
    return verdict
