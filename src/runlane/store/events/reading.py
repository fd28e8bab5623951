"""Read stored events and the outcomes of triggers."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Integer, Text, bindparam, cast, or_, select

from runlane.domain.tenant_event import Outcome, TenantEvent, TriggerOutcome
from runlane.errors import NotFound
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import optional
from runlane.store.sql.page_bytes import is_cut, within_bytes
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import event_outcomes, stored_events
from runlane.store.sql.statement import Row, Statement

_before = bindparam("before", type_=Text())
_limit = bindparam("limit", type_=Integer())
_LIST = Statement(
    "list_events",
    within_bytes(
        select(stored_events),
        stored_events.c.tenant == bindparam("tenant"),
        optional("name", stored_events.c.name),
        optional("key", stored_events.c.key),
        or_(cast(_before, Text).is_(None), stored_events.c.id < _before),
        keys=[stored_events.c.id],
        order=[(stored_events.c.id, True)],
        large=[stored_events.c.data],
        limit=_limit,
    ),
    purpose="Read a page of a tenant's events, newest first.",
)
_FIND = Statement(
    "find_event",
    select(stored_events).where(stored_events.c.id == bindparam("id"), stored_events.c.tenant == bindparam("tenant")),
    purpose="Read an event of a tenant.",
)
_OUTCOMES_OF_EVENT = Statement(
    "outcomes_of_event",
    select(event_outcomes)
    .where(event_outcomes.c.event_id == bindparam("event_id"), event_outcomes.c.tenant == bindparam("tenant"))
    .order_by(event_outcomes.c.trigger),
    purpose="Read what triggers made of an event.",
)
_OUTCOMES_OF_TRIGGER = Statement(
    "outcomes_of_trigger",
    select(event_outcomes)
    .where(
        event_outcomes.c.tenant == bindparam("tenant"),
        event_outcomes.c.trigger == bindparam("trigger"),
        optional("outcome", event_outcomes.c.outcome),
        or_(cast(_before, Text).is_(None), event_outcomes.c.event_id < _before),
    )
    .order_by(event_outcomes.c.event_id.desc())
    .limit(_limit),
    purpose="Read a page of what a trigger made of events, newest event first.",
)


async def list_events(
    database: Database,
    tenant: str,
    *,
    name: str | None = None,
    key: str | None = None,
    before: str | None = None,
    limit: int = 100,
) -> tuple[list[TenantEvent], bool]:
    """Return events, newest first, and whether there may be more; `before` is the last event of the previous page."""
    rows = await database.query(_LIST, tenant=tenant, name=name, key=key, before=before, limit=limit)
    return [event_of(row) for row in rows], len(rows) == limit or is_cut(rows)


async def find_event(database: Database, tenant: str, event_id: str) -> TenantEvent:
    """Return an event. Raises NotFound."""
    rows = await database.query(_FIND, id=event_id, tenant=tenant)
    if not rows:
        raise NotFound(f'The event "{event_id[:200]}" does not exist. Check the id and the retention time of events.')
    return event_of(rows[0])


async def outcomes_of_event(database: Database, tenant: str, event_id: str) -> list[TriggerOutcome]:
    """Return the outcomes of an event. Raises NotFound if it does not exist."""
    await find_event(database, tenant, event_id)
    return _outcomes(await database.query(_OUTCOMES_OF_EVENT, event_id=event_id, tenant=tenant))


async def outcomes_of_trigger(
    database: Database,
    tenant: str,
    trigger: str,
    *,
    outcome: Outcome | None = None,
    before: str | None = None,
    limit: int = 100,
) -> list[TriggerOutcome]:
    """Return the outcomes of a trigger; `before` is the event of the last outcome of the previous page."""
    rows = await database.query(
        _OUTCOMES_OF_TRIGGER,
        tenant=tenant,
        trigger=trigger,
        outcome=None if outcome is None else outcome.value,
        before=before,
        limit=limit,
    )
    return _outcomes(rows)


def event_of(row: Row) -> TenantEvent:
    """Return the event of a row."""
    return from_row(TenantEvent, row, json=("data",))


def _outcomes(rows: Sequence[Row]) -> list[TriggerOutcome]:
    return [from_row(TriggerOutcome, row, outcome=Outcome(row["outcome"])) for row in rows]
