"""The settler of dependents: complete the work that the end of a run has left for the runs that wait for it.

A transaction that ends runs cancels a bounded number of dependents that can never start, and none with an ordering key,
because the lock of a key comes before any row. The rest is settled here, a bounded number in each transaction, so that
a chain of a thousand runs is neither one transaction nor a recursion.
"""

from __future__ import annotations

from runlane.bus import Bus
from runlane.domain.events import Notice
from runlane.domain.ids import lock_key
from runlane.domain.run import Status
from runlane.failpoints import failpoint
from runlane.store.queue.dependencies import read_work, settle_work
from runlane.store.queue.dependency_rows import CANCELLED_AT_ONCE
from runlane.store.queue.ordering import ReleasedRun, key_locks
from runlane.store.queue.run_ends import settle_ended
from runlane.store.sql.database import Database, Session

_LOCK = lock_key("duty", "dependents")


class DependentSettler:
    """One pass; `PeriodicService` is the loop."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus

    async def run_once(self) -> bool:
        """Settle some; return True when there may be more."""
        changed, more = await self._database.transact(_settle)
        if changed:
            failpoint("dependents.committed")
            self._bus.ring({item.lane for item in changed if item.status is Status.QUEUED})
            self._bus.publish([Notice(item.run_id, item.last_seq) for item in changed])
        return more


async def _settle(session: Session) -> tuple[list[ReleasedRun], bool]:
    if not await session.try_lock(_LOCK):
        return [], False
    work = await read_work(session)
    if not work:
        return [], False
    await session.lock(exclusive=key_locks(row["ordering_key"] for row in work))
    settled = await settle_work(session, work)
    changed = [*settled.released, *await settle_ended(session, settled.ended)]
    failpoint("dependents.before_commit")
    return changed, bool(changed) or len(work) == CANCELLED_AT_ONCE
