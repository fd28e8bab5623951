"""Which definitions reach another one. The pins of a definition name everything that its runs may use."""

from __future__ import annotations

from typing import Final

from sqlalchemy import bindparam, select

from runlane.store.queue.search import escaped
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import definitions
from runlane.store.sql.statement import Row, Statement

MAX_USERS: Final = 500

_d = definitions.c
_USERS = Statement(
    "definitions_that_use",
    select(_d.kind, _d.id, _d.name)
    .where(
        _d.tenant == bindparam("tenant"),
        _d.removed_at.is_(None),
        _d.pins.like(bindparam("pattern"), escape="\\"),
    )
    .order_by(_d.kind, _d.id)
    .limit(lit(MAX_USERS)),
    purpose="Find the definitions of a tenant whose runs may use a definition.",
)


async def find_users(database: Database, tenant: str, kind: str, name: str) -> list[Row]:
    """Return kind, id and name of each definition that reaches this one; not the definition itself."""
    rows = await database.query(_USERS, tenant=tenant, pattern=f'%"{escaped(f"{kind}:{name}")}"%')
    return [row for row in rows if (row["kind"], row["id"]) != (kind, name)]
