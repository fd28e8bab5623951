"""Read the facts for hints about runs: the tenants of changed runs, and whether they ask questions or have failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import exists, select

from runlane.domain.run import Status
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import data_version, lit, member
from runlane.store.sql.schema import run_waits, runs
from runlane.store.sql.statement import Row, Statement

_ASKED = exists().where(run_waits.c.run_id == runs.c.id, run_waits.c.kind == lit("human"))
_CHANGED = Statement(
    "changed_runs",
    select(runs.c.id, runs.c.tenant, runs.c.status, _ASKED.label("asked")).where(member(runs.c.id, "ids")),
    purpose="Read the tenants and statuses of runs that have just changed, for open pages.",
)
_VERSION = Statement(
    "read_data_version",
    select(data_version().label("version")),
    purpose="Read a number that changes when another process changes the file; always 0 on Postgres.",
)


class ChangedRun(NamedTuple):
    """A run that has changed. With `asks`, a person may answer a question of it, or has just answered."""

    id: str
    tenant: str
    failed: bool
    asks: bool


async def find_changed(database: Database, run_ids: Sequence[str]) -> list[ChangedRun]:
    """Return those of these runs that exist."""

    async def work(session: Session) -> Sequence[Row]:
        return await session.fetch(_CHANGED, ids=session.texts(run_ids))

    return [
        ChangedRun(
            row["id"],
            row["tenant"],
            failed=row["status"] == Status.FAILED,
            asks=bool(row["asked"]) or row["status"] in (Status.PAUSED, Status.AWAITING_APPROVAL),
        )
        for row in await database.transact(work)
    ]


async def read_data_version(database: Database) -> int:
    """Return a number that changes when another process changes the SQLite file; always 0 on Postgres."""
    return (await database.query(_VERSION))[0]["version"]
