"""The schedules service: decides about due slots. It runs in every process, and none of them is a leader.

The database decides what is due, by its own clock. A process takes schedules that no other process has locked, so any
number of processes share the work. A schedule that cannot be decided is postponed by a minute and never delays others,
not even if it waits for a lock or a slow statement, because the time for each plan and transaction is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import structlog

from runlane.bus import Bus
from runlane.domain.firing import Firing, FiringOutcome
from runlane.domain.hints import Topic
from runlane.domain.maintenance import MaintenanceService
from runlane.errors import Unavailable
from runlane.failpoints import failpoint
from runlane.observability import metrics
from runlane.store.schedules.due import AT_ONCE, next_due_seconds, postpone, read_due, recompute_zones
from runlane.store.schedules.firing import Applied, FiringPlan, apply_plans
from runlane.store.schedules.rows import StoredSchedule, stored
from runlane.store.sql.database import Database

log = structlog.get_logger(__name__)

# The time between two tries for schedules that other processes are deciding about.
_RETRY_SECONDS: Final = 0.25
# The time for one plan, and for one transaction. It is less than the default timeout of a statement, because such a
# timeout fails the whole pass.
MAX_SECONDS: Final = 5.0
# How many transactions of single schedules may take too long before the database itself is considered slow.
_MAX_SLOW: Final = 3
# How many schedules a process skips because others are deciding about them.
_MAX_SKIP: Final = 10 * AT_ONCE


class Planner(Protocol):
    """Makes plans for due schedules."""

    async def tick(self, schedule: StoredSchedule) -> FiringPlan | None:
        """Return the plan, or None if another process should decide."""
        ...

    def begin_pass(self) -> None:
        """Forget what was read for earlier plans."""
        ...


class ScheduleService:
    """One pass; `PeriodicService` is the loop."""

    def __init__(self, database: Database, bus: Bus, planner: Planner, max_seconds: float = MAX_SECONDS) -> None:
        """`max_seconds` is the time for one plan, and for one transaction."""
        self._max_seconds = max_seconds
        self._slow = 0
        self._database = database
        self._bus = bus
        self._planner = planner
        self._skip = 0
        self._zones_checked = False

    async def run_once(self) -> bool:
        """Decide about some due slots; return True when there may be more."""
        if not self._zones_checked:
            self._zones_checked = await recompute_zones(self._database) == 0
        self._slow = 0
        plans, found = await self._plans()
        decided = await self._apply(plans) if plans else 0
        # If others decide about the same schedules, the next pass skips more of them.
        lost = decided < len(plans) and found == AT_ONCE
        self._skip = (self._skip + AT_ONCE) % _MAX_SKIP if lost else 0
        if decided or lost:
            return True
        next_seconds = await next_due_seconds(self._database)
        if next_seconds is not None:
            self._bus.report_timer(max(next_seconds, _RETRY_SECONDS if found else 0.0), MaintenanceService.SCHEDULES)
        return False

    async def _plans(self) -> tuple[list[FiringPlan], int]:
        rows = await read_due(self._database, self._skip)
        self._planner.begin_pass()
        plans: list[FiringPlan] = []
        broken: list[str] = []
        for row in rows:
            try:
                async with asyncio.timeout(self._max_seconds):
                    plan = await self._planner.tick(stored(row))
            except Unavailable:
                raise
            except Exception:
                log.exception("schedule_failed", schedule=row["id"], tenant=row["tenant"])
                broken.append(row["uid"])
            else:
                plans += [] if plan is None else [plan]
        if broken:
            metrics.SCHEDULE_FAILURES.add(len(broken))
            await postpone(self._database, broken)
        return plans, len(rows)

    async def _apply(self, plans: Sequence[FiringPlan]) -> int:
        """Carry out the plans; return how many. A plan that the database rejects is separated from the others."""
        try:
            async with asyncio.timeout(self._max_seconds):
                applied = await self._database.transact(lambda session: apply_plans(session, plans))
        except TimeoutError:
            return await self._apply_slow(plans)
        except Unavailable:
            raise
        except Exception:
            if len(plans) > 1:
                middle = len(plans) // 2
                return await self._apply(plans[:middle]) + await self._apply(plans[middle:])
            schedule = plans[0].schedule
            log.exception("schedule_failed", schedule=schedule.id, tenant=schedule.tenant)
            metrics.SCHEDULE_FAILURES.add()
            await postpone(self._database, [schedule.uid])
            return 0
        if applied.firings:
            failpoint("schedules.committed")
        self._notify(applied)
        for tenant in {plan.schedule.tenant for plan in plans}:
            self._bus.hint(Topic.SCHEDULES, tenant)
        return len(applied.firings)

    async def _apply_slow(self, plans: Sequence[FiringPlan]) -> int:
        """Carry out plans one at a time that take too long together; postpone the one that waits."""
        if len(plans) > 1:
            return sum([await self._apply([plan]) for plan in plans])
        schedule = plans[0].schedule
        log.warning("schedule_slow", schedule=schedule.id, tenant=schedule.tenant, seconds=self._max_seconds)
        await postpone(self._database, [schedule.uid])
        self._slow += 1
        if self._slow >= _MAX_SLOW:
            raise Unavailable("The database is too slow to decide about schedules.")
        return 0

    def _notify(self, applied: Applied) -> None:
        self._bus.ring(applied.lanes)
        self._bus.publish(applied.notices)
        for run_id in applied.cancelled:
            self._bus.signal_cancel(run_id)
        for firings in applied.firings.values():
            for firing in firings:
                _count(firing)


def _count(firing: Firing) -> None:
    match firing.outcome:
        case FiringOutcome.STARTED:
            metrics.SCHEDULE_STARTS.add()
            metrics.SCHEDULE_DELAY_SECONDS.observe((firing.decided_at_us - firing.due_at_us) / 1_000_000)
        case FiringOutcome.MISSED:
            metrics.SCHEDULE_MISSES.add(firing.count)
        case FiringOutcome.FAILED_TO_START:
            metrics.SCHEDULE_FAILURES.add()
        case FiringOutcome.SKIPPED_OVERLAP | FiringOutcome.REPLACED | FiringOutcome.REFUSED:
            metrics.SCHEDULE_SKIPS.add()
        case FiringOutcome.BUFFERED:
            pass
