"""Retention: deletes what finished long ago, a little at a time. On by default."""

from __future__ import annotations

from runlane.model.ids import lock_key
from runlane.settings import Settings
from runlane.store.database import Database, Session
from runlane.store.retention import AT_ONCE, delete_leftovers, delete_old

_LOCK = lock_key("duty", "retention")


class Retention:
    """One round at a time; see `Duty` for the loop."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._keep_seconds = settings.retention_days * 86400
        self._database = database

    async def round(self) -> bool:
        """Delete some; True when there is more."""
        return await self._database.transact(self._round)

    async def _round(self, session: Session) -> bool:
        if not await session.try_lock(_LOCK):
            return False
        deleted = await delete_old(session, self._keep_seconds)
        if deleted < AT_ONCE:
            await delete_leftovers(session, self._keep_seconds)
        return deleted == AT_ONCE
