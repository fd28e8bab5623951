"""The admission service: admit runs that wait for a concurrency limit although it has room.

Each process admits runs right after its own commits. This service finds the runs of a process that ended in between. It
is woken by the survey while runs wait.
"""

from __future__ import annotations

from runlane.store.queue.admission import keys_with_room
from runlane.store.queue.admitter import Admitter
from runlane.store.sql.database import Database


class AdmissionService:
    """One pass; `PeriodicService` is the loop."""

    def __init__(self, database: Database, admitter: Admitter) -> None:
        self._database = database
        self._admitter = admitter
        self._after = ""

    async def run_once(self) -> bool:
        """Check the limits for which runs wait; return True when there may be more of them."""
        keys, self._after = await keys_with_room(self._database, self._after)
        await self._admitter.admit(keys)
        return self._after != ""
