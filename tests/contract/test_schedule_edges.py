"""Edges of schedules: retention beside an open run, and new time zones during a pause."""

from __future__ import annotations

from runlane.store.schedules.due import delete_old_firings, recompute_zones
from tests.contract.test_schedules import finish_one, schedules
from tests.schedules import HOUR, SECOND, ScheduleStore

__all__ = ["schedules"]


async def test_retention_keeps_the_firing_of_an_open_run(schedules: ScheduleStore) -> None:
    """Without it the schedule would start a second run beside the open one."""
    await schedules.create()
    await schedules.tick(HOUR + SECOND)
    await schedules.tick(HOUR + SECOND)
    await schedules.store.sql("update schedule_firings set decided_at = 1")
    assert await schedules.database.transact(lambda session: delete_old_firings(session, 60)) == 0
    await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == ["started", "skipped_overlap", "skipped_overlap"]
    await finish_one(schedules.store)
    await schedules.tick(HOUR + SECOND)
    await schedules.store.sql("update schedule_firings set decided_at = 1")
    assert await schedules.database.transact(lambda session: delete_old_firings(session, 60)) == 3


async def test_another_zone_database_leaves_a_paused_schedule_paused(schedules: ScheduleStore) -> None:
    await schedules.create(spec=[{"cron": "0 9 * * *"}], zone="Europe/Berlin")
    await schedules.verbs.pause("default", "s", "not now", actor="test")
    await schedules.store.sql("update schedules set zone_version = 'old'")
    assert await recompute_zones(schedules.database) == 1
    found = await schedules.find()
    assert (found.next_at_us is not None, found.next_due_at_us) == (True, None)
