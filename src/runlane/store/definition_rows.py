"""The rows of current definitions, as a sync reads and writes them.

Each row records its source: the project that synced it. A sync changes and removes only definitions of its own source,
so several projects can share a tenant. A row without a source was imported, or was stored by a version without sources.
The first sync that contains the definition becomes its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import FromClause, Text, and_, bindparam, func, select, true, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.base import Executable

from runlane.definitions.schema.definition import Kind
from runlane.errors import Conflict
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import byte_size, lit, now_us
from runlane.store.sql.schema import definition_versions, definitions
from runlane.store.sql.statement import Statement


@dataclass(frozen=True, slots=True)
class DefinitionRow:
    """The stored fields of a current definition, without its body."""

    version: str
    origin: str
    source: str | None
    pins: str | None


Rows = dict[tuple[Kind, str], DefinitionRow]

_CURRENT = Statement(
    "current_definitions",
    select(
        definitions.c.kind,
        definitions.c.id,
        definitions.c.version,
        definitions.c.origin,
        definitions.c.source,
        definitions.c.pins,
    )
    .where(definitions.c.tenant == bindparam("tenant"), definitions.c.removed_at.is_(None))
    .order_by(definitions.c.kind, definitions.c.id),
    purpose="Read the current version of each definition of a tenant.",
)


def _keep_versions(batch: FromClause) -> Executable:
    return (
        insert(definition_versions)
        .from_select(
            ["tenant", "kind", "id", "version", "body", "created_at"],
            select(bindparam("tenant", type_=Text()), batch.c.kind, batch.c.id, batch.c.version, batch.c.body, now_us())
            .select_from(batch)
            .where(true()),
        )
        .on_conflict_do_nothing(index_elements=["tenant", "kind", "id", "version"])
    )


KEEP_VERSIONS = Statement(
    "add_definition_versions",
    _keep_versions,
    {"kind": Text(), "id": Text(), "version": Text(), "body": Text()},
    purpose="Store versions of definitions that do not exist yet.",
)
_PUT_COLUMNS = ("kind", "id", "version", "name", "description", "origin", "source", "pins")


def _put(batch: FromClause) -> Executable:
    statement = insert(definitions).from_select(
        ["tenant", *_PUT_COLUMNS, "created_at", "updated_at"],
        select(bindparam("tenant", type_=Text()), *(batch.c[name] for name in _PUT_COLUMNS), now_us(), now_us())
        .select_from(batch)
        .where(true()),
    )
    excluded = statement.excluded
    changed = {name: excluded[name] for name in (*_PUT_COLUMNS[2:], "updated_at")}
    return statement.on_conflict_do_update(
        index_elements=["tenant", "kind", "id"], set_={**changed, "removed_at": None}
    )


PUT = Statement(
    "put_definitions", _put, {name: Text() for name in _PUT_COLUMNS}, purpose="Make versions of definitions current."
)


def _of_batch(batch: FromClause) -> Any:
    return (
        (definitions.c.tenant == bindparam("tenant"))
        & (definitions.c.kind == batch.c.kind)
        & (definitions.c.id == batch.c.id)
    )


TOUCH = Statement(
    "touch_definitions",
    lambda batch: (
        update(definitions)
        .where(_of_batch(batch))
        .values(origin=batch.c.origin, source=batch.c.source, pins=batch.c.pins)
    ),
    {"kind": Text(), "id": Text(), "origin": Text(), "source": Text(), "pins": Text()},
    purpose="Update origin, source and pins of unchanged definitions.",
)
REMOVE = Statement(
    "remove_definitions",
    lambda batch: update(definitions).where(_of_batch(batch)).values(removed_at=now_us(), pins=None),
    {"kind": Text(), "id": Text()},
    purpose="Mark definitions as removed.",
)


_STORED = Statement(
    "size_of_definitions",
    select(
        func.count().label("definitions"),
        func.coalesce(func.sum(byte_size(definition_versions.c.body)), lit(0)).label("bytes"),
    )
    .select_from(
        definitions.join(
            definition_versions,
            and_(
                definition_versions.c.tenant == definitions.c.tenant,
                definition_versions.c.kind == definitions.c.kind,
                definition_versions.c.id == definitions.c.id,
                definition_versions.c.version == definitions.c.version,
            ),
        )
    )
    .where(definitions.c.tenant == bindparam("tenant"), definitions.c.removed_at.is_(None)),
    purpose="Count the current definitions of a tenant, with their bytes.",
)


async def check_stored(session: Session, tenant: str, max_definitions: int, max_bytes: int) -> None:
    """Raise Conflict if a tenant has too many definitions now: each sync and each check reads all of them."""
    stored = (await session.fetch(_STORED, tenant=tenant))[0]
    if stored["definitions"] > max_definitions or stored["bytes"] > max_bytes:
        raise Conflict(
            f'The tenant "{tenant}" would have {stored["definitions"]} definitions with {stored["bytes"]} bytes; at '
            f"most {max_definitions} with {max_bytes} bytes are allowed. Remove some, or use another tenant."
        )


async def read_rows(session: Session, tenant: str) -> Rows:
    """Return the current definitions of a tenant by kind and id."""
    return {
        (row["kind"], row["id"]): DefinitionRow(row["version"], row["origin"], row["source"], row["pins"])
        for row in await session.fetch(_CURRENT, tenant=tenant)
    }
