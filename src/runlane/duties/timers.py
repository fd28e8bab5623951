"""Timers: makes scheduled runs ready when their time has come."""

from __future__ import annotations

from runlane.bus import Bus
from runlane.model.ids import lock_key
from runlane.probes import reach
from runlane.store.database import Database, Session
from runlane.store.timers import AT_ONCE, queue_due

_LOCK = lock_key("duty", "timers")


class Timers:
    """One round at a time; see `Duty` for the loop."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus

    async def round(self) -> bool:
        """Queue what is due; True when there was more than one round takes."""
        lanes = await self._database.transact(_round)
        if lanes:
            reach("timers.committed")
            self._bus.ring(set(lanes))
        return len(lanes) >= AT_ONCE


async def _round(session: Session) -> list[str]:
    if not await session.try_lock(_LOCK):
        return []
    lanes = await queue_due(session)
    if lanes:
        reach("timers.before_commit")
    return list(lanes)
