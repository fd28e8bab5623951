"""Read the times at which the steps of a run began from their events."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import bindparam, func, select

from runlane.domain.events import EventType
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import json_text, lit, member
from runlane.store.sql.schema import run_events
from runlane.store.sql.statement import Row, Statement

_STARTS: Final = (EventType.STEP_START, EventType.PARALLEL_START, EventType.LOOP_ITERATION)

_e = run_events.c
_path = json_text(_e.data, lit("path")).label("path")
_STEP_STARTS = Statement(
    "read_step_starts",
    select(_path, func.min(_e.at).label("at"))
    .where(_e.run_id == bindparam("run_id"), member(_e.type, "types"), member(json_text(_e.data, lit("path")), "paths"))
    .group_by(_path),
    purpose="Read when the steps of these paths have begun.",
)


async def read_step_starts(database: Database, run_id: str, paths: Collection[str]) -> dict[str, int]:
    """Return when each of these steps began first, by its path. Steps whose events were deleted are missing."""

    async def work(session: Session) -> Sequence[Row]:
        given = {"types": session.texts(_STARTS), "paths": session.texts(sorted(paths))}
        return await session.fetch(_STEP_STARTS, run_id=run_id, **given)

    return {row["path"]: row["at"] for row in await database.transact(work)}
