"""Retention: delete runs that ended long ago, and old entries of the audit log, in small batches. On by default.

Where events are kept for a shorter time than their runs, it also cuts the streams of finished runs. It deletes threads
and items whose time to live has ended, and counts what tenants with a quota of bytes have stored.
"""

from __future__ import annotations

from functools import partial

from runlane.domain.ids import lock_key
from runlane.failpoints import failpoint
from runlane.settings import Settings
from runlane.store.access.audit import DELETED_AT_ONCE, delete_old_audit
from runlane.store.access.browser_sessions import delete_ended_sessions
from runlane.store.access.stored_bytes import count_again, due_counts
from runlane.store.chat.deletion import SESSIONS_AT_ONCE, delete_old_sessions
from runlane.store.events.sending import delete_old_events
from runlane.store.failures.bulk_jobs import delete_old_job
from runlane.store.orchestration.action_links import delete_old_links
from runlane.store.queue.retention import AT_ONCE, DeletedBatch, cut_events, delete_leftovers, delete_old, oldest_to_cut
from runlane.store.schedules.due import DELETED_AT_ONCE as FIRINGS_AT_ONCE
from runlane.store.schedules.due import delete_old_firings
from runlane.store.sql.database import Database, Session
from runlane.store.webhooks.retention import AT_ONCE as MESSAGES_AT_ONCE
from runlane.store.webhooks.retention import delete_old_messages

_LOCK = lock_key("duty", "retention")
_DAY_SECONDS = 86400
# A time after the end of every run.
_ALL = 2**62


class Retention:
    """One pass; `PeriodicService` is the loop."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._keep_seconds = settings.retention_days * _DAY_SECONDS
        self._keep_webhook_seconds = settings.webhook_retention_days * _DAY_SECONDS
        self._keep_audit_seconds = settings.audit_retention_days * _DAY_SECONDS
        self._keep_stored_seconds = settings.stored_events_days * _DAY_SECONDS
        self._event_id_seconds = settings.event_id_hours * 3600
        self._memory_key_hours = settings.memory_idempotency_hours
        days = settings.events_retention_days
        self._keep_events_seconds = None if days is None else days * _DAY_SECONDS
        self._database = database
        # The time from which on runs have events to cut; None when it has to be searched.
        self._cut_since: int | None = None

    async def run_once(self) -> bool:
        """Delete some; return True when there is more."""
        deleted, more = await self._database.transact(self._delete)
        expired = await self._database.transact(self._expire)
        expired = await self._forget_memory() or expired
        for tenant in await self._database.transact(due_counts):
            await count_again(self._database, tenant)
        if deleted:
            failpoint("retention.committed")
        return more or expired or await self._cut()

    async def _forget_memory(self) -> bool:
        """Delete expired entries of memories and ids of old operations; return True when there may be more."""
        # On SQLite, memory has a file of its own, which its process keeps small.
        if self._database.dialect == "sqlite":
            return False
        from runlane.store.memory.retention import PURGED_AT_ONCE, prune_ops, purge_expired

        purged = await purge_expired(self._database)
        return PURGED_AT_ONCE in (purged, await prune_ops(self._database, self._memory_key_hours))

    async def _expire(self, session: Session) -> bool:
        """Delete some threads and items whose time to live has ended; return True when there may be more."""
        # Imported here: a process that starts does not need it.
        from runlane.store.threads.expiry import THREADS_AT_ONCE, expire_threads
        from runlane.store.threads.items import SWEPT_AT_ONCE, sweep_items

        if not await session.try_lock(_LOCK):
            return False
        found = await expire_threads(session)
        return found == THREADS_AT_ONCE or await sweep_items(session) == SWEPT_AT_ONCE

    async def _delete(self, session: Session) -> tuple[int, bool]:
        """Delete some rows; return how many runs, and whether there may be more of anything."""
        if not await session.try_lock(_LOCK):
            return 0, False
        deleted = await delete_old(session, self._keep_seconds)
        more = deleted == AT_ONCE
        if not more:
            more = await delete_leftovers(session, self._keep_seconds)
            more = await delete_old_sessions(session, self._keep_seconds) == SESSIONS_AT_ONCE or more
            more = await delete_old_job(session, self._keep_seconds) or more
            more = await delete_old_firings(session, self._keep_seconds) == FIRINGS_AT_ONCE or more
            await delete_ended_sessions(session)
            await delete_old_links(session)
        more = await delete_old_audit(session, self._keep_audit_seconds) == DELETED_AT_ONCE or more
        more = await delete_old_events(session, self._keep_stored_seconds, self._event_id_seconds) or more
        more = await delete_old_messages(session, self._keep_webhook_seconds) == MESSAGES_AT_ONCE or more
        if deleted:
            failpoint("retention.before_commit")
        return deleted, more

    async def _cut(self) -> bool:
        keep_seconds = self._keep_events_seconds
        if keep_seconds is None:
            return False
        since = self._cut_since if self._cut_since is not None else await self._look_back(keep_seconds)

        async def work(session: Session) -> DeletedBatch:
            if not await session.try_lock(_LOCK):
                return DeletedBatch(0, more=False)
            cut = await cut_events(session, keep_seconds, since)
            if cut.events:
                failpoint("retention.before_commit")
            return cut

        cut = await self._database.transact(work)
        if cut.events:
            failpoint("retention.committed")
        self._cut_since = since if cut.more else None
        return cut.more

    async def _look_back(self, keep_seconds: float) -> int:
        since, more = _ALL, True
        while more:
            look = partial(oldest_to_cut, keep_seconds=keep_seconds, before=since)
            since, more = await self._database.transact(look)
        return since
