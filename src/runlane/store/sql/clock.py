"""The database's clock, which alone decides about leases, due times and order."""

from __future__ import annotations

from sqlalchemy import select

from runlane.store.sql.database import Database, read
from runlane.store.sql.expressions import now_us
from runlane.store.sql.statement import Statement

_NOW = Statement("database_clock", select(now_us().label("now")), purpose="Read the clock of the database.")


async def read_clock(database: Database) -> int:
    """Its time in microseconds since the epoch."""
    return (await read(database, _NOW))[0]["now"]
