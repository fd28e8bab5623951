"""Why a run waits, as text for people."""

from __future__ import annotations

from runlane.domain.flow_keys import FlowRule, rule_of_key
from runlane.domain.run import Run, Status
from runlane.domain.timestamps import format_timestamp
from runlane.store.queue.flow_statements import READ_KEY
from runlane.store.sql.database import Database
from runlane.store.sql.statement import Row


async def waiting_reason(database: Database, run: Run, row: Row) -> str | None:
    """Return why a run waits, or None; `row` has its columns. Only a run that flow control delays costs a statement."""
    if run.blocked_by is not None:
        return f"waits for run {run.blocked_by}, which holds its ordering key"
    if run.after is not None and run.after["reason"] is not None:
        return run.after["reason"]
    if run.status is Status.SCHEDULED and row["flow_key"] is not None and run.attempt == 0:
        return await _delayed(database, run, row["flow_key"])
    return None


async def _delayed(database: Database, run: Run, key: str) -> str:
    due = format_timestamp(run.due_at_us or 0)
    match rule_of_key(key):
        case FlowRule.DEBOUNCE:
            return f"debounced until {due}"
        case FlowRule.BATCH:
            found = await database.query(READ_KEY, key=key)
            if found and found[0]["run_id"] == run.id:
                return f"collecting a batch until {due}: {found[0]['starts']} of {found[0]['most']}"
            return "its batch is complete"
        case _:
            return f"throttled until {due}"
