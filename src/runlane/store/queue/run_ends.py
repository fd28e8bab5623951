"""The consequences of the end of runs beyond their own rows, in the same transaction.

Every transaction that ends runs calls `settle_ended`: the record of a worker, the reaper, and the cancellation of a run
that no worker executes. The caller holds the locks of the runs' ordering keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from runlane.domain.run import RunHook, Status
from runlane.observability import metrics
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

_FAILED: Final = Status.FAILED.value


async def settle_ended(session: Session, ended: Sequence[Row]) -> list[ReleasedRun]:
    """Free slots, settle letters and threads, pass ordering keys on, start slots of schedules, decide about dependents.

    Return the runs that became ready, and those that ended because they can never start. A row has the columns id,
    status, ordering_key, holds_key, tenant, hooks (see `RunHook`), and `notifies`: whether the tenant has webhook
    endpoints.
    """
    changed: list[ReleasedRun] = []
    may_cancel = CANCELLED_AT_ONCE
    while ended:
        hooks = _hooks_of(ended)
        if RunHook.LIMITS in hooks:
            await free_ended(session, ended)
        if RunHook.DEAD_LETTER in hooks or any(row["status"] == _FAILED for row in ended):
            await settle_letters(session, [row for row in ended if _is_letter(row)])
        if RunHook.WEBHOOK in hooks or any(row["notifies"] for row in ended):
            await report_ended(session, ended)
        if RunHook.TRIGGERS in hooks:
            await store_run_events(session, ended)
        if RunHook.THREAD in hooks:
            # Imported here: a worker without graphs is smaller without it.
            from runlane.store.threads.run_ends import settle_threads

            await settle_threads(session, ended)
        changed += await release_next(
            session, [row["ordering_key"] for row in ended if row["ordering_key"] and not row["holds_key"]]
        )
        if RunHook.SCHEDULE in hooks:
            changed += await settle_schedules(session, ended)
        if RunHook.DEPENDENTS not in hooks:
            break
        # A run that can never start ends here, and so may its own dependents.
        dependents = await settle_dependents(session, ended, may_cancel)
        changed += dependents.released
        ended = dependents.ended
        count_ended(ended)
        may_cancel -= len(ended)
    return changed


def count_ended(ended: Sequence[Row]) -> None:
    """Count runs that ended without a worker. A worker counts those that it ends."""
    for row in ended:
        metrics.RUNS_ENDED.add(row["target"], row["status"])


def _hooks_of(ended: Sequence[Row]) -> RunHook:
    """Return the hooks that at least one of the runs has. Most have none, and a test of each row would be slow."""
    bits = 0
    for row in ended:
        bits |= row["hooks"]
    return RunHook(bits)


def _is_letter(row: Row) -> bool:
    return row["status"] == _FAILED or bool(row["hooks"] & RunHook.DEAD_LETTER)
