"""Schedules for tests: stored ones, the service of a process, and time that passes by moving schedules back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from runlane import Context
from runlane.bus.memory import MemoryBus
from runlane.domain.firing import Firing
from runlane.domain.schedule import Schedule
from runlane.domain.task import Task, make_task
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.maintenance.schedules import ScheduleService
from runlane.store.schedules.rows import StoredSchedule, find_schedule
from runlane.submit.schedule_plans import SchedulePlanner
from runlane.submit.schedules import Schedules, parse_schedule
from tests.harness import Store

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def us(text: str) -> int:
    """Return a time as microseconds since the epoch."""
    return round(datetime.fromisoformat(text).timestamp() * SECOND)


def shown(at_us: int) -> str:
    """Return microseconds since the epoch as text."""
    return datetime.fromtimestamp(at_us / SECOND, UTC).isoformat()


async def job(ctx: Context, **arguments: Any) -> None:
    """Do nothing."""


JOB = make_task(job, "job", lane="default", max_attempts=3, max_losses=None, timeout_seconds=None)


class ScheduleStore:
    """Schedules of one database."""

    def __init__(self, store: Store, tasks: Mapping[str, Task] | None = None) -> None:
        self.store = store
        self.database = store.database
        self.bus = MemoryBus()
        self.planner = SchedulePlanner(store.database, {"job": JOB} if tasks is None else tasks, 1_000_000, 10)
        self.verbs = Schedules(self.planner, self.bus)

    def service(self, max_seconds: float = 60.0) -> ScheduleService:
        """Return the service of a process."""
        return ScheduleService(self.database, self.bus, self.planner, max_seconds)

    async def create(self, schedule_id: str = "s", *, tenant: str = DEFAULT_TENANT, **fields: Any) -> Schedule:
        """Store a schedule: hourly runs of `job` unless other fields are given."""
        body = {
            "id": schedule_id,
            "target": {"kind": "task", "name": "job"},
            "spec": [{"every_seconds": 3600}],
            **fields,
        }
        return await self.verbs.create(tenant, parse_schedule(body), actor="test")

    async def find(self, schedule_id: str = "s", tenant: str = DEFAULT_TENANT) -> StoredSchedule:
        return await find_schedule(self.database, tenant, schedule_id)

    async def firings(self, schedule_id: str = "s", tenant: str = DEFAULT_TENANT) -> list[Firing]:
        """Return all firings, oldest first."""
        return list(reversed(await self.verbs.firings(tenant, schedule_id, limit=1000)))

    async def outcomes(self, schedule_id: str = "s") -> list[str]:
        return [firing.outcome.value for firing in await self.firings(schedule_id)]

    async def pass_time(self, passed_us: int) -> None:
        """Let time pass for all schedules: their times move back, which is the same for periods."""
        await self.store.sql(
            "update schedules set anchor_at = anchor_at - :us, cursor_at = cursor_at - :us, next_at = next_at - :us, "
            "next_due_at = next_due_at - :us, last_slot = last_slot - :us",
            us=passed_us,
        )
        await self.store.sql(
            "update schedule_firings set slot = slot - :us, due_at = due_at - :us, last_slot = last_slot - :us",
            us=passed_us,
        )

    async def tick(self, passed_us: int = 0) -> None:
        """Let time pass, then decide about everything that is due."""
        if passed_us:
            await self.pass_time(passed_us)
        service = self.service()
        while await service.run_once():
            pass

    async def runs(self) -> list[str]:
        """Return the ids of all runs, oldest first."""
        return [row["id"] for row in await self.store.sql("select id from runs order by accepted_at, id")]
