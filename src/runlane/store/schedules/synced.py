"""Schedules of definition files: a sync stores and removes them in its own transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import Text, bindparam, select

from runlane.domain.ids import lock_key
from runlane.domain.schedule import ScheduleSettings
from runlane.errors import Conflict, InvalidRequest
from runlane.store.schedules.changes import delete_in, draft, insert_schedule, limits_in, update_schedule
from runlane.store.schedules.rows import LOCK, stored
from runlane.store.sql.database import Session
from runlane.store.sql.schema import schedules
from runlane.store.sql.statement import Statement

# The source of schedules that are defined in files.
FILES: Final = "files"
_NAMES = Statement(
    "synced_schedules",
    select(schedules.c.id).where(
        schedules.c.tenant == bindparam("tenant", type_=Text()), schedules.c.source == bindparam("source", type_=Text())
    ),
    purpose="Read the ids of the schedules that are defined in files.",
)


def schedules_lock(tenant: str) -> int:
    """Return the lock under which schedules of a tenant are added."""
    return lock_key("schedules", tenant)


async def settle_schedules_of_files(
    session: Session,
    tenant: str,
    given: Sequence[ScheduleSettings],
    changed: Collection[str],
    removed: Collection[str],
    *,
    actor: str,
    take_over: bool,
) -> None:
    """Store the schedules that a sync contains and remove others. `changed` are those that are new or differ.

    A pause stays, because an operator's decision is not part of a file.
    """
    limits = await limits_in(session, tenant)
    present = {row["id"] for row in await session.fetch(_NAMES, tenant=tenant, source=FILES)}
    for settings in given:
        if settings.id in present and settings.id not in changed:
            continue
        rows = await session.fetch(LOCK, tenant=tenant, id=settings.id)
        known = stored(rows[0]) if rows else None
        if known is not None and known.source != FILES and not take_over:
            raise Conflict(
                f'The schedule "{settings.id}" was created by {known.created_by} and not by a sync. Give the file '
                "another id, delete that schedule, or take it over (--take-over, take_over). Nothing was changed."
            )
        try:
            fresh = draft(tenant, settings, limits, actor=actor, source=FILES, known=known)
        except InvalidRequest as error:
            raise InvalidRequest(f'schedule "{settings.id}": {error}') from None
        if known is None:
            await insert_schedule(session, fresh, limits.max_schedules)
        else:
            await update_schedule(session, known, fresh)
    for name in removed:
        for row in await session.fetch(LOCK, tenant=tenant, id=name):
            if row["source"] == FILES:
                await delete_in(session, stored(row), actor)
