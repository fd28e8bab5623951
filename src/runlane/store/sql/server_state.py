"""The state of a Postgres server before an upgrade of the schema: size, rights of the role, half-built indexes."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from runlane.store.sql.database import Database
from runlane.store.sql.statement import Statement

_SIZE = Statement(
    "database_size",
    text("select pg_database_size(current_database()) as size"),
    purpose="Read the size of the database, before an upgrade.",
)
# Only an owner, or a member of the owning role, may change a table.
_RIGHTS = Statement(
    "migration_rights",
    text(
        "select current_user::text as role, "
        "coalesce(has_schema_privilege(current_schema(), 'create'), false) as creates, "
        "(select pg_get_userbyid(relowner)::text from pg_class where oid = to_regclass('runs')) as owner, "
        "coalesce((select pg_has_role(relowner, 'usage') from pg_class where oid = to_regclass('runs')), true) as owns"
    ),
    purpose="Read whether the role may create and change tables, before an upgrade.",
)
_INVALID = Statement(
    "invalid_indexes",
    text(
        "select c.relname::text as name from pg_index i join pg_class c on c.oid = i.indexrelid "
        "where not i.indisvalid and c.relnamespace = current_schema()::regnamespace order by 1"
    ),
    purpose="Find indexes whose creation was interrupted, before an upgrade.",
)


@dataclass(frozen=True, slots=True)
class ServerState:
    """The size in bytes, the role and its rights, and the names of invalid indexes."""

    size_bytes: int
    role: str
    owner: str | None
    may_migrate: bool
    invalid_indexes: tuple[str, ...]


async def read_server_state(database: Database) -> ServerState:
    """Read the state of a Postgres server."""
    (size,) = await database.query(_SIZE)
    (rights,) = await database.query(_RIGHTS)
    invalid = tuple(row["name"] for row in await database.query(_INVALID))
    return ServerState(
        size["size"], rights["role"], rights["owner"], bool(rights["creates"] and rights["owns"]), invalid
    )
