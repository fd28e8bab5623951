"""Retention: deletes what finished long ago, and old entries of the audit log, a little at a time. On by default."""

from __future__ import annotations

from runlane.model.ids import lock_key
from runlane.probes import reach
from runlane.settings import Settings
from runlane.store.audit import DELETED_AT_ONCE, delete_old_audit
from runlane.store.database import Database, Session
from runlane.store.retention import AT_ONCE, delete_leftovers, delete_old

_LOCK = lock_key("duty", "retention")


class Retention:
    """One round at a time; see `Duty` for the loop."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._keep_seconds = settings.retention_days * 86400
        self._keep_audit_seconds = settings.audit_retention_days * 86400
        self._database = database

    async def round(self) -> bool:
        """Delete some; True when there is more."""
        deleted, entries = await self._database.transact(self._round)
        if deleted:
            reach("retention.committed")
        return deleted == AT_ONCE or entries == DELETED_AT_ONCE

    async def _round(self, session: Session) -> tuple[int, int]:
        if not await session.try_lock(_LOCK):
            return 0, 0
        deleted = await delete_old(session, self._keep_seconds)
        if deleted < AT_ONCE:
            await delete_leftovers(session, self._keep_seconds)
        entries = await delete_old_audit(session, self._keep_audit_seconds)
        if deleted:
            reach("retention.before_commit")
        return deleted, entries
