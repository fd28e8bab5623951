"""The reaper: requeue the runs of lost workers.

A worker is lost when its liveness lock is free and its heartbeat is late, or when its lease has expired. A false
positive is safe, because the fence rejects the writes of the old worker; a slow detection is not, because runs wait.
"""

from __future__ import annotations

import time

import structlog

from runlane.bus import Bus
from runlane.domain.hints import Topic
from runlane.domain.ids import lock_key
from runlane.failpoints import failpoint
from runlane.observability import metrics
from runlane.settings import Settings
from runlane.store.orchestration.children import wake_parents
from runlane.store.queue.liveness_lock import lock_is_free, remove_lock_files
from runlane.store.queue.reaping import (
    RECONNECT_SECONDS,
    ReapedRuns,
    Suspect,
    declare_lost,
    find_orphans,
    find_suspects,
    take_over,
)
from runlane.store.sql.database import Database, Session

log = structlog.get_logger(__name__)

_LOCK = lock_key("duty", "reaper")
# Orphans cannot arise while every rule holds, so the reaper rarely searches for them.
_ORPHANS_EVERY_SECONDS = 30.0


class Reaper:
    """One pass; `PeriodicService` is the loop."""

    def __init__(self, settings: Settings, database: Database, bus: Bus) -> None:
        self._settings = settings
        self._database = database
        self._bus = bus
        self._orphans_at = time.monotonic() + _ORPHANS_EVERY_SECONDS

    async def run_once(self) -> bool:
        """Find lost workers and requeue their runs."""
        suspects = await find_suspects(self._database, self._settings.silence_seconds, trust_locks=self._trusts_locks())
        # The query itself may have revealed that the connections of this process are broken.
        suspects = [suspect for suspect in suspects if suspect.expired or self._trusts_locks()]
        look_for_orphans = time.monotonic() >= self._orphans_at
        if not suspects and not look_for_orphans:
            return False
        if look_for_orphans:
            self._orphans_at = time.monotonic() + _ORPHANS_EVERY_SECONDS
        taken = await self._database.transact(lambda session: self._reap(session, suspects, look_for_orphans))
        if taken is not None:
            failpoint("reaper.committed")
            metrics.LOST_WORKERS.add(len(taken.workers))
            metrics.TAKEOVERS.add(taken.runs)
            metrics.ATTEMPTS.add("lost", count=taken.runs)
            # The lock of a worker whose lease has expired was not tried.
            remove_lock_files(self._settings, taken.workers)
            log.warning("workers_lost", workers=list(taken.workers), runs=taken.runs)
            self._bus.ring(taken.ready_lanes)
            self._bus.publish(taken.notices)
            self._bus.hint(Topic.WORKERS)
            if taken.ended:
                # If this fails, the parents still wake by their timers, only later.
                self._bus.ring(await wake_parents(self._database, taken.ended))
        return False

    def _trusts_locks(self) -> bool:
        # If connections of this process broke, those of workers may have too: then a free lock proves nothing yet.
        return time.monotonic() - self._database.steady_since > RECONNECT_SECONDS

    async def _reap(self, session: Session, suspects: list[Suspect], look_for_orphans: bool) -> ReapedRuns | None:
        if not await session.try_lock(_LOCK):
            return None
        gone: list[str] = []
        for suspect in suspects:
            free = suspect.expired or await lock_is_free(session, self._settings, suspect.id)
            if free and await declare_lost(
                session, suspect.id, self._settings.silence_seconds, lock_is_free=not suspect.expired
            ):
                gone.append(suspect.id)
        if look_for_orphans:
            gone.extend(worker_id for worker_id in await find_orphans(session) if worker_id not in gone)
        if not gone:
            return None
        taken = await take_over(session, gone)
        failpoint("reaper.before_commit")
        return taken
