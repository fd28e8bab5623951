"""The reason why a run does not start, for people and programs. Each kind of reason has its own function."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Integer, bindparam, case, func, select

from runlane.domain.concurrency import describe_full, limits_of_text
from runlane.domain.flow_keys import FlowRule, rule_of_key
from runlane.domain.run import Run, RunHook, Status, WaitingReason
from runlane.domain.timestamps import format_timestamp
from runlane.store.queue.flow_statements import READ_KEY
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import concurrency_limits, limit_slots, limit_waits, run_inputs, runs
from runlane.store.sql.statement import Row, Statement

# The number of runs in a reason.
MAX_SHOWN: Final = 10

_holder = runs.alias("holder")
_slots = limit_slots.c.key == limit_waits.c.key
_running = func.sum(case((_holder.c.status == lit(Status.RUNNING), lit(1)), else_=lit(0)))
_WAITS = Statement(
    "read_limit_of_waiting_run",
    select(
        limit_waits.c.key,
        run_inputs.c.limits,
        select(func.count()).where(_slots).scalar_subquery().label("admitted"),
        select(func.coalesce(_running, lit(0)))
        .select_from(limit_slots.join(_holder, _holder.c.id == limit_slots.c.run_id))
        .where(_slots)
        .scalar_subquery()
        .label("running"),
        select(concurrency_limits.c.max_running)
        .where(concurrency_limits.c.key == limit_waits.c.key)
        .scalar_subquery()
        .label("shared"),
    )
    .select_from(limit_waits.join(run_inputs, run_inputs.c.run_id == limit_waits.c.run_id))
    .where(limit_waits.c.run_id == bindparam("run_id")),
    purpose="Read the concurrency limit that a run waits for, and its use.",
)
_HOLDERS = Statement(
    "read_holders_of_limit",
    select(limit_slots.c.run_id)
    .where(limit_slots.c.key == bindparam("key"))
    .order_by(limit_slots.c.run_id)
    .limit(bindparam("most", type_=Integer())),
    purpose="Read some of the runs that are admitted under a concurrency limit.",
)


async def read_waiting_reason(database: Database, run: Run, row: Row) -> WaitingReason | None:
    """Return why a run waits; None if its own status is the only reason.

    `row` has the columns of the run. Only limits and batches need a statement of their own.
    """
    if run.blocked_by is not None:
        message = f"waits for run {run.blocked_by}, which holds its ordering key"
        return {"code": "ordering_key", "message": message, "runs": [run.blocked_by], "refs": {}}
    if run.after is not None and run.after["reason"] is not None:
        still_open = [run_id for run_id, status in run.after["runs"].items() if status is None]
        return {"code": "after", "message": run.after["reason"], "runs": still_open[:MAX_SHOWN], "refs": {}}
    if run.status is Status.BLOCKED and row["hooks"] & RunHook.LIMITS:
        return await _full_limit(database, run.id)
    if run.status is Status.SCHEDULED and row["flow_key"] is not None and run.attempt == 0:
        return await _delayed(database, run, row["flow_key"])
    return None


async def _delayed(database: Database, run: Run, key: str) -> WaitingReason:
    """Return which rule of flow control delays a run."""
    due, rule = format_timestamp(run.due_at_us or 0), rule_of_key(key)
    match rule:
        case FlowRule.DEBOUNCE:
            message = f"debounced until {due}"
        case FlowRule.BATCH:
            found = await database.query(READ_KEY, key=key)
            message = "its batch is complete"
            if found and found[0]["run_id"] == run.id:
                message = f"collecting a batch until {due}: {found[0]['starts']} of {found[0]['most']}"
        case _:
            message = f"throttled until {due}"
    return {"code": rule.value, "message": message, "runs": [], "refs": {}}


async def _full_limit(database: Database, run_id: str) -> WaitingReason | None:
    rows = await database.query(_WAITS, run_id=run_id)
    if not rows:
        return None
    row = rows[0]
    limit = next(limit for limit in limits_of_text(row["limits"]) if limit.key == row["key"])
    most = row["shared"] if limit.limit is not None else limit.max_running
    holders = await database.query(_HOLDERS, key=row["key"], most=MAX_SHOWN)
    return {
        "code": "concurrency_limit",
        "message": describe_full(
            limit.label, row["admitted"], row["running"], row["admitted"] if most is None else most
        ),
        "runs": [holder["run_id"] for holder in holders],
        "refs": {},
    }
