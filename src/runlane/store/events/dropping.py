"""Delete the events of a deleted tenant, and everything that belongs to them."""

from __future__ import annotations

from sqlalchemy import bindparam, delete

from runlane.store.sql.database import Session
from runlane.store.sql.schema import event_ids, event_outcomes, run_listeners, stored_events, webhook_sources
from runlane.store.sql.statement import Statement

_DROP = tuple(
    Statement(
        f"delete_{table.name}_of_tenant",
        delete(table).where(table.c.tenant == bindparam("tenant")),
        purpose=f"Delete the rows of a deleted tenant in {table.name}.",
    )
    for table in (stored_events, event_ids, event_outcomes, run_listeners, webhook_sources)
)


async def drop_events(session: Session, tenant: str) -> None:
    """Delete the events, outcomes and webhook sources of a deleted tenant."""
    for statement in _DROP:
        await session.fetch(statement, tenant=tenant)
