"""Lanes that a tenant's definitions name: created with the definitions, bounded per tenant, and deleted with them.

The row of such a lane only shows that it exists: a lane without a row is served with the same settings. So a row can be
deleted although paused runs of the lane are left. A lane that an operator has changed belongs to no tenant.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import bindparam, delete, select

from runlane.errors import InvalidDefinitions
from runlane.store.queue.lanes import DECLARE, IS_IN_USE
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import member
from runlane.store.sql.schema import lanes
from runlane.store.sql.statement import Statement

_SHOWN = 5
_EXISTING = Statement(
    "lanes_of_names",
    select(lanes.c.name, lanes.c.tenant).where(member(lanes.c.name, "names")),
    purpose="Read lanes by name.",
)
_of_tenant = lanes.c.tenant == bindparam("tenant")
_OWN = Statement(
    "lanes_of_tenant",
    select(lanes.c.name).where(_of_tenant),
    purpose="Read the lanes that a tenant's definitions named.",
)
_REMOVE = Statement(
    "remove_lanes",
    delete(lanes).where(member(lanes.c.name, "names"), _of_tenant, ~IS_IN_USE),
    purpose="Delete a tenant's lanes that no run uses.",
)
_DROP = Statement(
    "delete_lanes_of_tenant", delete(lanes).where(_of_tenant), purpose="Delete the lanes of a deleted tenant."
)


async def check_tenant_lanes(session: Session, tenant: str, named: Collection[str], most: int | None) -> set[str]:
    """Return the lanes to create for the tenant. Raises InvalidDefinitions if they are too many."""
    rows = await session.fetch(_EXISTING, names=session.texts(sorted(named)))
    existing = {row["name"]: row["tenant"] for row in rows}
    new = set(named) - set(existing)
    own = len(new) + sum(owner == tenant for owner in existing.values())
    if most is not None and new and own > most:
        shown = ", ".join(sorted(new)[:_SHOWN])
        problem = (
            f'The definitions name {own} lanes that only tenant "{tenant}" has; at most {most} are allowed '
            f"(RUNLANE_MAX_LANES_PER_TENANT). New ones: {shown}. Use lanes that exist, or let an operator make them: "
            "runlane lanes set NAME --create"
        )
        raise InvalidDefinitions([("lane", problem)])
    return new


async def settle_tenant_lanes(session: Session, tenant: str, named: Collection[str], most: int | None) -> None:
    """Create the lanes that the tenant's definitions name, and delete its lanes that they no longer name."""
    new = await check_tenant_lanes(session, tenant, named, most)
    await session.fetch(DECLARE, [(name, tenant) for name in sorted(new)])
    unused = {row["name"] for row in await session.fetch(_OWN, tenant=tenant)} - set(named)
    if unused:
        await session.fetch(_REMOVE, names=session.texts(sorted(unused)), tenant=tenant)


async def drop_tenant_lanes(session: Session, tenant: str) -> None:
    """Delete the lanes of a deleted tenant."""
    await session.fetch(_DROP, tenant=tenant)
