"""Rows of server processes, renewed while they run. They are informational: no decision depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import bindparam, delete, select

from runlane.domain.server import ServerReplica
from runlane.domain.text import dump_json
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, now_us, upsert
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import servers
from runlane.store.sql.statement import Statement

# A process that has not renewed its row for this long is not shown, and its row is deleted.
GONE_SECONDS: Final = 60

_insert = upsert(servers).values(
    id=bindparam("server_id"),
    hostname=bindparam("hostname"),
    pid=bindparam("pid"),
    version=bindparam("version"),
    started_at=now_us(),
    heartbeat_at=now_us(),
    figures=bindparam("figures"),
)
_RENEW = Statement(
    "renew_server",
    _insert.on_conflict_do_update(
        index_elements=["id"],
        set_={"heartbeat_at": _insert.excluded.heartbeat_at, "figures": _insert.excluded.figures},
    ),
    purpose="Note that a serving process runs.",
)
_gone = servers.c.heartbeat_at < now_us() - lit(GONE_SECONDS * 1_000_000)
SERVING = ~_gone
_FORGET = Statement("forget_servers", delete(servers).where(_gone), purpose="Delete the rows of servers that ended.")
_REMOVE = Statement(
    "remove_server",
    delete(servers).where(servers.c.id == bindparam("server_id")),
    purpose="Delete the row of a server that stops.",
)
_LIST = Statement(
    "list_servers",
    select(servers).where(SERVING).order_by(servers.c.id).limit(lit(1000)),
    purpose="Read the serving processes.",
)


async def renew_server(
    database: Database, server_id: str, hostname: str, pid: int, version: str, figures: Mapping[str, Any]
) -> None:
    """Store that a serving process runs, with its figures."""

    async def work(session: Session) -> None:
        await session.fetch(
            _RENEW, server_id=server_id, hostname=hostname, pid=pid, version=version, figures=dump_json(figures)
        )
        await session.fetch(_FORGET)

    await database.transact(work)


async def remove_server(database: Database, server_id: str) -> None:
    """Delete the row of a process that stops."""

    async def work(session: Session) -> None:
        await session.fetch(_REMOVE, server_id=server_id)

    await database.transact(work)


async def list_servers(database: Database) -> list[ServerReplica]:
    """Return the serving processes of the last minute."""
    return [from_row(ServerReplica, row, json=("figures",)) for row in await database.query(_LIST)]
