"""Definitions that clients of the MCP server see as tools of their own."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

from sqlalchemy import Integer, bindparam, or_, select

from runlane.definitions.schema.definition import Kind
from runlane.domain.text import load_json
from runlane.store.sql.database import Database
from runlane.store.sql.schema import definition_versions, definitions
from runlane.store.sql.statement import Statement

MAX_EXPOSED: Final = 500

_EXPOSED = Statement(
    "exposed_definitions",
    select(definitions.c.kind, definitions.c.id, definition_versions.c.body)
    .join(
        definition_versions,
        (definition_versions.c.tenant == definitions.c.tenant)
        & (definition_versions.c.kind == definitions.c.kind)
        & (definition_versions.c.id == definitions.c.id)
        & (definition_versions.c.version == definitions.c.version),
    )
    .where(
        definitions.c.tenant == bindparam("tenant"),
        definitions.c.removed_at.is_(None),
        or_(definitions.c.kind == "agent", definitions.c.kind == "orchestration"),
        # Bodies are stored as JSON without spaces and without defaults, so this finds every one that is set.
        definition_versions.c.body.like('%"expose":"mcp"%'),
    )
    .order_by(definitions.c.kind, definitions.c.id)
    .limit(bindparam("limit", type_=Integer())),
    purpose="Read the orchestrations and agents of a tenant that the MCP server offers as tools.",
)


class ExposedDefinition(NamedTuple):
    """An agent or orchestration that is a tool."""

    kind: Kind
    id: str
    body: dict[str, Any]


async def list_exposed(database: Database, tenant: str) -> list[ExposedDefinition]:
    """Return the exposed definitions of a tenant, by kind and id; at most MAX_EXPOSED of them."""
    rows = await database.query(_EXPOSED, tenant=tenant, limit=MAX_EXPOSED)
    found = [ExposedDefinition(row["kind"], row["id"], cast("dict[str, Any]", load_json(row["body"]))) for row in rows]
    # The same text may be part of a value inside of the body.
    return [definition for definition in found if definition.body.get("expose") == "mcp"]
