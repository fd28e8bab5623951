"""Edges of schedules: retention beside an open run, new time zones during a pause, backfills within missed slots."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from runlane.domain.run import Status
from runlane.domain.task import Task
from runlane.errors import InvalidRequest
from runlane.observability import metrics
from runlane.store.access.tenants import TenantChange, set_tenant
from runlane.store.queue.search import RunFilter, search_runs
from runlane.store.schedules import changes
from runlane.store.schedules.due import delete_old_firings, recompute_zones
from runlane.store.schedules.firing import Applied, apply_plans
from runlane.submit import schedule_plans
from tests.contract.test_interleavings import all_wait, held_open, on_postgres
from tests.contract.test_schedules import finish_one, schedules
from tests.harness import Store
from tests.schedules import HOUR, JOB, MINUTE, SECOND, ScheduleStore

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


async def test_a_plan_that_another_process_has_overtaken_does_not_move_the_schedule_back(
    schedules: ScheduleStore,
) -> None:
    await schedules.create()
    await schedules.pass_time(HOUR + SECOND)
    plan = await schedules.planner.tick(await schedules.find())
    assert plan is not None
    await schedules.database.transact(lambda session: apply_plans(session, [plan]))
    # The other process has decided the next slot as well.
    for name in ("cursor_at", "next_at", "next_due_at"):
        await schedules.store.sql(f"update schedules set {name} = {name} + :hour", hour=HOUR)
    before = await schedules.find()
    applied = await schedules.database.transact(lambda session: apply_plans(session, [plan]))
    after = await schedules.find()
    assert applied.firings == {}
    assert (after.cursor_at_us, after.next_at_us) == (before.cursor_at_us, before.next_at_us)


@on_postgres
async def test_a_run_that_starts_while_its_schedule_is_decided_is_not_cancelled_without_its_lock(
    schedules: ScheduleStore,
) -> None:
    await schedules.create(overlap="cancel_previous")
    await schedules.pass_time(HOUR + SECOND)
    found = await schedules.find()
    manual, due = await schedules.planner.manual(found, "allow", None), await schedules.planner.tick(found)
    assert due is not None

    async def decide() -> Applied:
        return await schedules.database.transact(lambda session: apply_plans(session, [due], wait=True))

    async with held_open(schedules.store, lambda session: apply_plans(session, [manual], wait=True)):
        # It has read the open runs, of which there are none, and waits for the schedule.
        deciding = asyncio.create_task(decide())
        await all_wait(schedules.store, deciding)
    assert (await deciding).firings == {}
    (run_id,) = await schedules.runs()
    assert await schedules.store.status(run_id) is Status.QUEUED
    # The next pass takes the locks of both.
    assert (await decide()).cancelled == [run_id]


async def test_backfills_within_missed_slots_keep_each_slot_in_one_firing(schedules: ScheduleStore) -> None:
    await schedules.create(catch_up="none", overlap="allow")
    await schedules.tick(8 * HOUR + 5 * MINUTE)
    (missed,) = await schedules.firings()
    second = missed.slot_us + 2 * HOUR

    async def backfill(first_us: int) -> list[tuple[str, int]]:
        await schedules.verbs.backfill("default", "s", first_us, first_us + HOUR, actor="ann", overlap="allow")
        return [(firing.outcome.value, firing.count) for firing in await schedules.firings()]

    middle = [("missed", 6), ("started", 1), ("started", 1)]
    # The slots of a repeated backfill are not taken out of the count again.
    assert [await backfill(second), await backfill(second)] == [middle, middle]
    # What is left of the span begins after the slots that have started, and does not replace their firings.
    assert await backfill(missed.slot_us) == [*[("started", 1)] * 4, ("missed", 4)]
    assert (await schedules.firings())[-1].slot_us == second + 2 * HOUR


async def test_a_resumed_schedule_starts_no_more_runs_than_it_may(schedules: ScheduleStore) -> None:
    await schedules.create(max_firings=3, overlap="allow")
    await schedules.tick(HOUR + SECOND)
    await schedules.verbs.pause("default", "s", "not now", actor="test")
    await schedules.pass_time(5 * HOUR + MINUTE)
    _, firings = await schedules.verbs.resume("default", "s", actor="test", catch_up="all")
    assert (len(firings), len(await schedules.runs()), (await schedules.find()).fired) == (2, 3, 3)
    assert (await schedules.verbs.get("default", "s")).status == "ended"


@pytest.mark.parametrize("tasks", [{"job": JOB}, {}], ids=["with the code", "by the template"])
async def test_runs_of_a_schedule_have_its_tags_and_webhook(store: Store, tasks: dict[str, Task]) -> None:
    created = ScheduleStore(store)
    url = "https://example.com/done"
    await created.create(overlap="queue_all", tags=["nightly", "eu"], webhook_url=url)
    schedules = ScheduleStore(store, tasks)
    for _ in range(2):
        await schedules.tick(HOUR + SECOND)
    await finish_one(store)
    runs = [await store.get(run_id) for run_id in await schedules.runs()]
    assert [run.tags for run in runs] == [("eu", "nightly")] * 2
    assert [row["url"] for row in await store.sql("select url from run_webhooks")] == [url] * 2
    found = (await search_runs(store.database, RunFilter(tags=("eu",), schedule_id="s"))).runs
    assert {run.id for run in found} == {run.id for run in runs}
    with pytest.raises(InvalidRequest, match="tags"):
        await schedules.create("other", tags=["a b"])


@pytest.mark.parametrize("overlap", ["queue_one", "queue_all", "cancel_previous"])
async def test_a_schedule_with_a_bound_starts_as_many_runs(schedules: ScheduleStore, overlap: str) -> None:
    await schedules.create(overlap=overlap, max_firings=3)
    await schedules.tick(HOUR + SECOND)
    claimed = await schedules.store.claim_one()
    for _ in range(5):
        await schedules.tick(HOUR + SECOND)
    await schedules.store.finish(claimed)
    while (await schedules.verbs.get("default", "s")).status == "active" or "buffered" in await schedules.outcomes():
        await schedules.tick(HOUR + SECOND)
        await finish_one(schedules.store)
    assert (await schedules.outcomes()).count("started") == 3
    assert len(await schedules.runs()) == 3


async def test_a_slot_that_waited_and_was_refused_does_not_count(schedules: ScheduleStore) -> None:
    await schedules.create(overlap="queue_all", max_firings=2)
    for _ in range(2):
        await schedules.tick(HOUR + SECOND)
    assert (await schedules.verbs.get("default", "s")).status == "ended"
    await set_tenant(schedules.database, "default", TenantChange(max_queued=0), actor="test")
    await finish_one(schedules.store)
    await schedules.tick()
    found = await schedules.verbs.get("default", "s")
    assert (found.status, found.fired) == ("active", 1)
    await set_tenant(schedules.database, "default", TenantChange(max_queued=5), actor="test")
    await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == ["started", "failed_to_start", "started"]
    assert (await schedules.verbs.get("default", "s")).status == "ended"


async def test_the_decisions_of_a_process_are_counted(schedules: ScheduleStore) -> None:
    counters = (metrics.SCHEDULE_STARTS, metrics.SCHEDULE_SKIPS, metrics.SCHEDULE_MISSES, metrics.SCHEDULE_FAILURES)
    before = [counter.value for counter in counters]
    await schedules.create()
    await schedules.tick(HOUR + SECOND)
    await schedules.tick(HOUR + SECOND)
    await finish_one(schedules.store)
    await schedules.tick(5 * HOUR + 2 * MINUTE)
    await finish_one(schedules.store)
    await set_tenant(schedules.database, "default", TenantChange(max_queued=0), actor="test")
    await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == ["started", "skipped_overlap", "missed", "started", "failed_to_start"]
    assert [counter.value - earlier for counter, earlier in zip(counters, before, strict=True)] == [2, 1, 4, 1]


async def test_the_slots_of_a_long_span_are_computed_off_the_event_loop(
    schedules: ScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a minutely schedule that was paused for a month take seconds, in which a server would do nothing else.

    The slots of a pause are not computed at all if the schedule is edited before it is resumed.
    """
    in_loop: list[bool] = []

    def noted(function: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            in_loop.append(threading.current_thread() is threading.main_thread())
            return function(*given, **named)

        return call

    for module, name in ((schedule_plans, "judge"), (schedule_plans, "judge_span"), (changes, "judge_span")):
        monkeypatch.setattr(module, name, noted(getattr(module, name)))
    await schedules.create(spec=[{"cron": "* * * * *"}], overlap="allow", catch_up="none")
    await schedules.tick(5 * MINUTE)
    assert in_loop == [True]
    await schedules.tick(20 * HOUR)
    await schedules.verbs.pause("default", "s", "x", actor="test")
    await schedules.pass_time(20 * HOUR)
    await schedules.verbs.resume("default", "s", actor="test")
    assert in_loop[1:] == [False, False]
    await schedules.verbs.pause("default", "s", "x", actor="test")
    await schedules.pass_time(20 * HOUR)
    await schedules.verbs.patch("default", "s", {"spec": [{"every_seconds": 60}]}, actor="test")
    assert len(in_loop) == 3
