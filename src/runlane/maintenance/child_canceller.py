"""The child canceller: cancel the child runs of cancelled runs.

It is separate from the timers, because it may have to wait for a transaction that starts such a run.
"""

from __future__ import annotations

from runlane.bus import Bus
from runlane.domain.ids import lock_key
from runlane.errors import RunNotFound
from runlane.failpoints import failpoint
from runlane.store.orchestration.children import any_marked, children_to_cancel
from runlane.store.queue.run_changes import cancel_run
from runlane.store.sql.database import Database, Session

_LOCK = lock_key("duty", "children")


class ChildCanceller:
    """One pass; `PeriodicService` is the loop."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus

    async def run_once(self) -> bool:
        """Cancel some; return True when there may be more."""
        if not await any_marked(self._database):
            return False
        run_ids, more = await self._database.transact(_read_marked)
        for run_id in run_ids:
            failpoint("children.before_cancel")
            await self._cancel(run_id)
        return more

    async def _cancel(self, run_id: str) -> None:
        try:
            change = await cancel_run(self._database, run_id)
        except RunNotFound:
            return  # retention has deleted the run
        self._bus.signal_cancel(run_id)
        self._bus.ring(change.ready_lanes)
        self._bus.publish(change.notices)


async def _read_marked(session: Session) -> tuple[list[str], bool]:
    return await children_to_cancel(session) if await session.try_lock(_LOCK) else ([], False)
