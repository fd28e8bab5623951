"""Check that lanes exist."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select

from runlane.errors import UnknownLane
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.schema import lanes
from runlane.store.sql.statement import Statement

_NAMES = Statement("lane_names", select(lanes.c.name).order_by(lanes.c.name), purpose="Read the names of all lanes.")


async def check_lanes(database: Database, names: Collection[str]) -> None:
    """Raise if a name is not a lane."""
    known = {row["name"] for row in await read(database, _NAMES)}
    for name in sorted(names):
        if name not in known:
            raise UnknownLane(name, known)


async def require_lane(session: Session, name: str) -> None:
    """Raise if the name is not a lane."""
    known = {row["name"] for row in await session.fetch(_NAMES)}
    if name not in known:
        raise UnknownLane(name, known)
