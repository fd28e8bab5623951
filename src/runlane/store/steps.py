"""Steps: what a run has finished so far, one record each; a new attempt goes on after the last one.

A Python task has one step of its own, its checkpoint, which each later checkpoint replaces.
"""

from __future__ import annotations

from sqlalchemy import FromClause, Integer, Text, and_, bindparam, select
from sqlalchemy.sql.base import Executable

from runlane.store.expressions import now_us
from runlane.store.schema import run_steps, runs
from runlane.store.statement import Statement

CHECKPOINT_PATH = "checkpoint"


def _save(batch: FromClause) -> Executable:
    # A whole dialect comes with it, which whoever only reads steps should not wait for.
    from sqlalchemy.dialects.postgresql import insert

    b = batch.c
    fence = and_(runs.c.id == b.run_id, runs.c.attempt == b.attempt)
    statement = insert(run_steps).from_select(
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
)
READ_STEPS = Statement(
    "read_steps",
    select(run_steps).where(run_steps.c.run_id == bindparam("run_id")).order_by(run_steps.c.path),
)
