"""What the end of runs settles besides their own rows, in the same transaction.

Every transaction that ends runs calls `settle_ended`: the record of a worker, the reaper, and the cancellation of a run
that no worker executes. The caller holds the locks of the runs' ordering keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from runlane.domain.run import RunHook, Status
from runlane.store.events.run_ends import store_run_events
from runlane.store.queue.dead_letters import settle_letters
from runlane.store.queue.dependencies import settle_dependents
from runlane.store.queue.dependency_rows import CANCELLED_AT_ONCE
from runlane.store.queue.limits import free_ended
from runlane.store.queue.ordering import ReleasedRun, release_next
from runlane.store.schedules.buffer import settle_schedules
from runlane.store.sql.database import Session
from runlane.store.sql.statement import Row
from runlane.store.webhooks.run_messages import report_ended


async def settle_ended(session: Session, ended: Sequence[Row]) -> list[ReleasedRun]:
    """Free slots, settle dead letters, pass ordering keys on, start slots of schedules and decide about dependents.

    Return the runs that became ready, and those that ended because they can never start. A row has the columns id,
    status, ordering_key, holds_key, tenant, hooks (see `RunHook`), and `notifies`: whether the tenant has webhook
    endpoints.
    """
    changed: list[ReleasedRun] = []
    may_cancel = CANCELLED_AT_ONCE
    while ended:
        await free_ended(session, ended)
        dead = [row for row in ended if row["status"] == Status.FAILED or row["hooks"] & RunHook.DEAD_LETTER]
        if dead:
            await settle_letters(session, dead)
        await report_ended(session, ended)
        await store_run_events(session, ended)
        changed += await release_next(
            session, [row["ordering_key"] for row in ended if row["ordering_key"] and not row["holds_key"]]
        )
        if any(row["hooks"] & RunHook.SCHEDULE for row in ended):
            changed += await settle_schedules(session, ended)
        # A run that can never start ends here, and so may those that wait for it.
        dependents = await settle_dependents(session, ended, may_cancel)
        changed += dependents.released
        ended = dependents.ended
        may_cancel -= len(ended)
    return changed
