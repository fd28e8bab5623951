"""Find the definitions that use another one, directly or indirectly, or that refer to a secret.

The pins of a definition name everything that its runs may use.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from sqlalchemy import and_, bindparam, select

from runlane.domain.secret import SecretUser
from runlane.domain.text import load_json
from runlane.store.queue.search import escaped
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import definition_versions, definitions
from runlane.store.sql.statement import Row, Statement

MAX_USERS: Final = 500
# Definitions whose pins are read to count the users of all others.
MAX_COUNTED: Final = 5000

_VERSION_KEY: Final = ("tenant", "kind", "id", "version")
_d = definitions.c
_v = definition_versions.c
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


_PINS = Statement(
    "pins_of_definition",
    select(_d.pins).where(
        _d.tenant == bindparam("tenant"),
        _d.removed_at.is_(None),
        _d.kind == bindparam("kind"),
        _d.id == bindparam("id"),
    ),
    purpose="Read what the runs of a definition may use.",
)
_ALL_PINS = Statement(
    "pins_of_tenant",
    select(_d.kind, _d.id, _d.pins)
    .where(_d.tenant == bindparam("tenant"), _d.removed_at.is_(None), _d.pins.is_not(None))
    .order_by(_d.kind, _d.id)
    .limit(lit(MAX_COUNTED)),
    purpose="Read what the runs of each definition of a tenant may use.",
)
_REFERRERS = Statement(
    "definitions_with_secret",
    select(_d.kind, _d.id, _d.name)
    .select_from(definitions.join(definition_versions, and_(*(_d[name] == _v[name] for name in _VERSION_KEY))))
    .where(
        _d.tenant == bindparam("tenant"),
        _d.removed_at.is_(None),
        _v.body.like(bindparam("pattern"), escape="\\"),
    )
    .order_by(_d.kind, _d.id)
    .limit(lit(MAX_USERS)),
    purpose="Find the definitions of a tenant that refer to a secret.",
)


async def find_secret_users(database: Database, tenant: str, name: str) -> list[SecretUser]:
    """Return the current definitions that refer to a secret."""
    rows = await database.query(_REFERRERS, tenant=tenant, pattern=f"%{{secret.{escaped(name)}}}%")
    return [from_row(SecretUser, row) for row in rows]


async def find_users(database: Database, tenant: str, kind: str, name: str) -> list[Row]:
    """Return kind, id and name of each definition that reaches this one; not the definition itself."""
    rows = await database.query(_USERS, tenant=tenant, pattern=f'%"{escaped(f"{kind}:{name}")}"%')
    return [row for row in rows if (row["kind"], row["id"]) != (kind, name)]


async def find_pins(database: Database, tenant: str, kind: str, name: str) -> list[str]:
    """Return `kind:id` of everything that the runs of a definition may use; empty for a kind without runs."""
    rows = await database.query(_PINS, tenant=tenant, kind=kind, id=name)
    return [] if not rows or rows[0]["pins"] is None else list(load_json(rows[0]["pins"]))


async def count_users(database: Database, tenant: str, kind: str) -> dict[str, int]:
    """Return how many other definitions reach each definition of a kind; those that none reaches are left out."""
    counts: Counter[str] = Counter()
    for row in await database.query(_ALL_PINS, tenant=tenant):
        counts.update(key for key in load_json(row["pins"]) if key != f"{row['kind']}:{row['id']}")
    prefix = f"{kind}:"
    return {key.removeprefix(prefix): count for key, count in counts.items() if key.startswith(prefix)}
