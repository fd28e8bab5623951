"""The ends of runs as events, written by the transaction that ends them, where a trigger of the tenant listens.

`run_listeners` has the triggers for ends of runs. The statements that end runs return the hook TRIGGERS for a tenant
with at least one, so that others cost nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, FromClause, Text, bindparam, case, delete, exists, insert, select
from sqlalchemy.sql.base import Executable

from runlane.definitions.schema.trigger import Trigger
from runlane.domain.ids import new_id
from runlane.domain.run import RunHook
from runlane.domain.tenant_event import RUN_EVENT, listens
from runlane.domain.text import dump_json, load_json
from runlane.store.events.sending import INSERT_EVENTS
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import member, with_bits
from runlane.store.sql.schema import run_inputs, run_listeners, run_results, runs
from runlane.store.sql.statement import Row, Statement

# A longer result or error is not part of the event; the run has it.
MAX_RESULT: Final = 64 * 1024

_LISTENERS = Statement(
    "find_run_listeners",
    select(run_listeners).where(member(run_listeners.c.tenant, "tenants")),
    purpose="Read the triggers that listen to ends of runs.",
)
_ENDED = Statement(
    "read_ended_runs",
    select(
        runs.c.id,
        runs.c.target,
        runs.c.status,
        runs.c.tenant,
        runs.c.ended_at,
        run_inputs.c.origin,
        run_results.c.result,
        run_results.c.error,
    )
    .select_from(
        runs.join(run_inputs, run_inputs.c.run_id == runs.c.id).outerjoin(
            run_results, run_results.c.run_id == runs.c.id
        )
    )
    .where(member(runs.c.id, "ids"))
    .order_by(runs.c.id),
    purpose="Read ended runs whose end is an event.",
)
_FORGET = Statement(
    "delete_run_listeners",
    delete(run_listeners).where(run_listeners.c.tenant == bindparam("tenant")),
    purpose="Remove the triggers of a tenant that listen to ends of runs.",
)


def _listen(batch: FromClause) -> Executable:
    b = batch.c
    return insert(run_listeners).from_select(
        ["tenant", "trigger", "event", "target"],
        select(b.tenant, b.trigger, b.event, b.target).select_from(batch),
    )


_LISTEN = Statement(
    "add_run_listeners",
    _listen,
    {"tenant": Text(), "trigger": Text(), "event": Text(), "target": Text()},
    purpose="Add the triggers of a tenant that listen to ends of runs.",
)


def hooks_of_end() -> ColumnElement[Any]:
    """Return the hooks of a run that a statement ends, with TRIGGERS if a trigger of its tenant listens."""
    listened = exists().where(run_listeners.c.tenant == runs.c.tenant)
    return case((listened, with_bits(runs.c.hooks, RunHook.TRIGGERS)), else_=runs.c.hooks).label("hooks")


async def set_run_listeners(session: Session, tenant: str, triggers: Iterable[Trigger]) -> None:
    """Replace the triggers of a tenant that listen to ends of runs, in the transaction that stores definitions."""
    await session.fetch(_FORGET, tenant=tenant)
    rows = [(tenant, item.id, item.event, item.run_target) for item in triggers if item.listens_to_runs]
    await session.fetch(_LISTEN, sorted(rows))


async def store_run_events(session: Session, ended: Sequence[Row]) -> None:
    """Store the ends of runs that a trigger listens to as events."""
    listened = [row for row in ended if row["hooks"] & RunHook.TRIGGERS]
    if not listened:
        return
    tenants = session.texts(sorted({row["tenant"] for row in listened}))
    listeners = await session.fetch(_LISTENERS, tenants=tenants)
    rows = await session.fetch(_ENDED, ids=session.texts(sorted(row["id"] for row in listened)))
    events = [_event(row) for row in rows if any(_matches(listener, row) for listener in listeners)]
    await session.fetch(INSERT_EVENTS, events)


def _matches(listener: Row, run: Row) -> bool:
    return (
        listener["tenant"] == run["tenant"]
        and listener["target"] in (None, run["target"])
        and listens(listener["event"], f"{RUN_EVENT}{run['status']}")
    )


def _event(row: Row) -> tuple[object, ...]:
    origin: dict[str, Any] = {} if row["origin"] is None else load_json(row["origin"])
    result, error = row["result"] or "null", row["error"] or "null"
    data = {
        "run_id": row["id"],
        "target": row["target"],
        "status": row["status"],
        "ended_at_us": row["ended_at"],
        "result": load_json(result) if len(result) <= MAX_RESULT else None,
        "error": load_json(error) if len(error) <= MAX_RESULT else None,
        "complete": len(result) <= MAX_RESULT and len(error) <= MAX_RESULT,
    }
    name = f"{RUN_EVENT}{row['status']}"
    return (new_id("evt"), row["tenant"], name, None, row["id"], dump_json(data), "run", origin.get("depth", 0))
