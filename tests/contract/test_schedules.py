"""Schedules: each slot is decided once, in one transaction with its run; overlap, catch-up, pause, backfill."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from runlane.diagnosis.operation_findings import schedule_findings
from runlane.domain.firing import FiringOutcome
from runlane.domain.run import Status
from runlane.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    RunlaneError,
    ScheduleLimited,
    UnknownDefinition,
    VersionMismatch,
    WrongState,
)
from runlane.observability import metrics
from runlane.store.access.tenants import TenantChange, create_tenant, set_tenant
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.run_changes import cancel_run
from runlane.store.schedules.due import delete_old_firings
from runlane.store.schedules.health import ScheduleHealth, read_schedule_health
from runlane.submit.schedules import parse_schedule
from tests.harness import Store, dead
from tests.schedules import HOUR, MINUTE, SECOND, ScheduleStore

PAUSED = Finish(AttemptOutcome.PAUSED, Status.PAUSED)


@pytest.fixture
def schedules(store: Store) -> ScheduleStore:
    return ScheduleStore(store)


async def finish_one(store: Store, finish: Finish | None = None) -> str:
    """Execute the next run to its end, or to a pause."""
    claimed = await store.claim_one()
    await store.finish(claimed, finish)
    return claimed.run_id


async def test_nothing_is_decided_before_its_time(schedules: ScheduleStore) -> None:
    created = await schedules.create()
    await schedules.tick(HOUR - 5 * SECOND)
    assert await schedules.firings() == []
    found = await schedules.find()
    assert found.next_at_us is not None
    assert found.next_at_us - found.now_us < 5 * SECOND
    assert (created.status, created.version, created.fired) == ("active", 1, 0)


async def test_a_due_slot_starts_one_run_that_names_it(schedules: ScheduleStore) -> None:
    await schedules.create(input={"a": 1})
    await schedules.tick(HOUR + SECOND)
    (firing,) = await schedules.firings()
    assert (firing.outcome, firing.kind.value) == (FiringOutcome.STARTED, "tick")
    (run_id,) = await schedules.runs()
    run = await schedules.store.get(run_id)
    assert firing.run_id == run_id
    assert (run.target, run.input, run.schedule_id, run.slot_us) == ("job", {"a": 1}, "s", firing.slot_us)
    found = await schedules.find()
    assert found.next_at_us == firing.slot_us + HOUR
    assert found.fired == 1
    claimed = await schedules.store.claim_one()
    assert claimed.origin is not None
    assert '"schedule":"s"' in claimed.origin


async def test_slots_have_the_slot_before_them(schedules: ScheduleStore) -> None:
    await schedules.create(overlap="allow")
    await schedules.tick(HOUR + SECOND)
    first = (await schedules.firings())[0].slot_us - HOUR - SECOND
    await schedules.tick(HOUR + SECOND)
    runs = [await schedules.store.get(run_id) for run_id in await schedules.runs()]
    assert [run.previous_slot_us for run in runs] == [None, first]


async def test_many_processes_decide_each_slot_once(schedules: ScheduleStore) -> None:
    for number in range(12):
        await schedules.create(f"s{number}", overlap="allow")
    await schedules.pass_time(HOUR + SECOND)

    async def process() -> None:
        service = schedules.service()
        while await service.run_once():
            pass

    await asyncio.gather(*(process() for _ in range(4)))
    await schedules.tick()
    for number in range(12):
        assert await schedules.outcomes(f"s{number}") == ["started"]
    assert len(await schedules.runs()) == 12


async def test_a_schedule_that_another_process_has_locked_is_left_to_it(schedules: ScheduleStore) -> None:
    if schedules.database.dialect == "sqlite":
        return  # it has one writer
    await schedules.create("held")
    await schedules.create("free")
    await schedules.pass_time(HOUR + SECOND)
    locked, done = asyncio.Event(), asyncio.Event()

    async def hold(session: Any) -> None:
        from runlane.store.schedules.rows import lock_schedule

        await lock_schedule(session, "default", "held")
        locked.set()
        await done.wait()

    holder = asyncio.create_task(schedules.database.transact(hold))
    await locked.wait()
    await schedules.tick()
    assert (await schedules.outcomes("held"), await schedules.outcomes("free")) == ([], ["started"])
    done.set()
    await holder
    await schedules.tick()
    assert await schedules.outcomes("held") == ["started"]


async def test_an_overdue_slot_is_skipped_while_a_run_is_open(schedules: ScheduleStore) -> None:
    await schedules.create()
    await schedules.tick(HOUR + SECOND)
    await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == ["started", "skipped_overlap"]
    await finish_one(schedules.store)
    await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == ["started", "skipped_overlap", "started"]


@pytest.mark.parametrize("end", [None, dead()], ids=["completed", "failed"])
async def test_one_buffered_slot_starts_in_the_transaction_that_ends_the_run(
    schedules: ScheduleStore, end: Finish | None
) -> None:
    await schedules.create(overlap="queue_one")
    for _ in range(3):
        await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == ["started", "replaced", "buffered"]
    await finish_one(schedules.store, end)
    # No service has run since: the record of the end has started it.
    firings = await schedules.firings()
    assert [firing.outcome.value for firing in firings] == ["started", "replaced", "started"]
    run = await schedules.store.get(firings[-1].run_id or "")
    assert (run.status, run.slot_us) == (Status.QUEUED, firings[-1].slot_us)


async def test_buffered_slots_start_in_order_one_after_the_other(schedules: ScheduleStore) -> None:
    await schedules.create(overlap="queue_all")
    for _ in range(4):
        await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == ["started", "buffered", "buffered", "buffered"]
    ended = [await finish_one(schedules.store) for _ in range(4)]
    firings = await schedules.firings()
    assert [firing.run_id for firing in firings] == ended
    assert [firing.outcome.value for firing in firings] == ["started"] * 4


async def test_a_full_buffer_refuses(schedules: ScheduleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.domain.schedule_rules.MAX_BUFFERED", 2)
    await schedules.create(overlap="queue_all")
    for _ in range(4):
        await schedules.tick(HOUR + SECOND)
    firings = await schedules.firings()
    assert [firing.outcome.value for firing in firings] == ["started", "buffered", "buffered", "refused"]
    assert firings[-1].reason == "buffer_full"


async def test_the_previous_run_is_cancelled_and_the_new_one_starts_when_it_has_ended(schedules: ScheduleStore) -> None:
    await schedules.create(overlap="cancel_previous")
    await schedules.tick(HOUR + SECOND)
    claimed = await schedules.store.claim_one()
    await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == ["started", "buffered"]
    assert (await schedules.store.get(claimed.run_id)).cancel_requested_at_us is not None
    await schedules.store.finish(claimed, Finish(AttemptOutcome.CANCELLED, Status.CANCELLED))
    assert await schedules.outcomes() == ["started", "started"]


async def test_a_previous_run_that_has_not_begun_is_replaced_at_once(schedules: ScheduleStore) -> None:
    await schedules.create(overlap="cancel_previous")
    await schedules.tick(HOUR + SECOND)
    await schedules.tick(HOUR + SECOND)
    first, second = await schedules.firings()
    assert (first.outcome, second.outcome) == (FiringOutcome.STARTED, FiringOutcome.STARTED)
    assert await schedules.store.status(first.run_id or "") is Status.CANCELLED
    assert await schedules.store.status(second.run_id or "") is Status.QUEUED


async def test_several_runs_may_be_open_up_to_a_bound(schedules: ScheduleStore) -> None:
    await schedules.create(overlap="allow", max_open=2)
    for _ in range(3):
        await schedules.tick(HOUR + SECOND)
    firings = await schedules.firings()
    assert [firing.outcome.value for firing in firings] == ["started", "started", "refused"]
    assert firings[-1].reason == "max_open"


@pytest.mark.parametrize(("counts", "expected"), [(True, "skipped_overlap"), (False, "started")])
async def test_a_paused_run_counts_as_open_unless_it_is_excluded(
    schedules: ScheduleStore, counts: bool, expected: str
) -> None:
    await schedules.create(paused_counts=counts)
    await schedules.tick(HOUR + SECOND)
    await finish_one(schedules.store, PAUSED)
    await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == ["started", expected]


async def test_a_cancelled_run_lets_the_buffered_slot_start(schedules: ScheduleStore) -> None:
    await schedules.create(overlap="queue_all")
    await schedules.tick(HOUR + SECOND)
    await schedules.tick(HOUR + SECOND)
    first, _ = await schedules.firings()
    change = await cancel_run(schedules.database, first.run_id or "")
    assert change.ready_lanes == ("default",)
    assert await schedules.outcomes() == ["started", "started"]


async def test_a_buffered_slot_of_a_tenant_with_limits_is_started_by_the_service(schedules: ScheduleStore) -> None:
    await set_tenant(schedules.database, "default", TenantChange(max_queued=2), actor="test")
    await schedules.create(overlap="queue_all")
    await schedules.tick(HOUR + SECOND)
    await schedules.tick(HOUR + SECOND)
    await finish_one(schedules.store)
    assert await schedules.outcomes() == ["started", "buffered"]
    await schedules.tick()
    assert await schedules.outcomes() == ["started", "started"]


async def test_a_reached_limit_is_recorded_and_the_next_slot_tries_again(schedules: ScheduleStore) -> None:
    await set_tenant(schedules.database, "default", TenantChange(max_queued=0), actor="test")
    await schedules.create()
    await schedules.tick(HOUR + SECOND)
    (firing,) = await schedules.firings()
    assert (firing.outcome, firing.reason) == (FiringOutcome.FAILED_TO_START, "queue_limited")
    await set_tenant(schedules.database, "default", TenantChange(max_queued=5), actor="test")
    await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == ["failed_to_start", "started"]


async def test_a_run_with_an_ordering_key_waits_for_its_turn(schedules: ScheduleStore) -> None:
    await schedules.create(overlap="queue_all", ordering_key="k")
    await schedules.store.add(ordering_key="k")
    await schedules.tick(HOUR + SECOND)
    await schedules.tick(HOUR + SECOND)
    first, _ = await schedules.firings()
    assert await schedules.store.status(first.run_id or "") is Status.BLOCKED
    for _ in range(3):
        await finish_one(schedules.store)
    assert await schedules.outcomes() == ["started", "started"]


async def test_a_removed_definition_is_recorded_and_others_fire(schedules: ScheduleStore) -> None:
    await schedules.create("good")
    await schedules.create("bad")
    gone = parse_schedule(
        {"id": "bad", "target": {"kind": "orchestration", "name": "gone"}, "spec": [{"cron": "* * * * *"}]}
    )
    with pytest.raises(UnknownDefinition):
        await schedules.verbs.put("default", gone, actor="test")
    text = gone.model_copy(update={"spec": (await schedules.find("bad")).settings.spec}).model_dump_json(
        exclude_defaults=True
    )
    await schedules.store.sql("update schedules set settings = :text where id = 'bad'", text=text)
    await schedules.tick(HOUR + SECOND)
    (failed,) = await schedules.firings("bad")
    assert (failed.outcome, failed.reason) == (FiringOutcome.FAILED_TO_START, "unknown_definition")
    assert "gone" in (failed.detail or "")
    assert await schedules.outcomes("good") == ["started"]
    await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes("bad") == ["failed_to_start"] * 2


async def test_settings_that_cannot_be_read_do_not_hold_up_others(schedules: ScheduleStore) -> None:
    for name in ("broken", "good"):
        await schedules.create(name)
    await schedules.store.sql("update schedules set settings = '{}' where id = 'broken'")
    failures = metrics.SCHEDULE_FAILURES.value
    await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes("good") == ["started"]
    # It is tried again every minute, so that it never looks late: only the counter and the doctor show it.
    assert metrics.SCHEDULE_FAILURES.value == failures + 1
    health = await read_schedule_health(schedules.database)
    assert (health.unreadable, health.overdue) == (("broken",), 0)
    assert [finding.level.value for finding in schedule_findings(health)] == ["broken"]


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("none", [("missed", 10)]),
        ("latest", [("missed", 9), ("started", 1)]),
        ("all", [("missed", 6), ("started", 1), ("started", 1), ("started", 1), ("started", 1)]),
    ],
)
async def test_catch_up_after_an_outage(
    schedules: ScheduleStore, catch_up: str, expected: list[tuple[str, int]]
) -> None:
    await schedules.create(
        catch_up=catch_up, catch_up_window_seconds=4 * 3600, overlap="allow", spec=[{"every_seconds": 3600}]
    )
    await schedules.tick(10 * HOUR + 2 * MINUTE)
    firings = await schedules.firings()
    assert [(firing.outcome.value, firing.count) for firing in firings] == expected
    missed = firings[0]
    assert missed.last_slot_us == missed.slot_us + (missed.count - 1) * HOUR
    assert missed.reason == ("superseded" if catch_up == "latest" else "catch_up_window")
    found = await schedules.find()
    assert found.next_at_us is not None
    assert found.now_us < found.next_at_us <= found.now_us + HOUR


async def test_a_short_delay_is_not_an_outage(schedules: ScheduleStore) -> None:
    await schedules.create(catch_up="none")
    await schedules.tick(HOUR + 30 * SECOND)
    assert await schedules.outcomes() == ["started"]


async def test_a_long_outage_is_caught_up_with_in_parts(
    schedules: ScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runlane.domain.schedule_rules._AT_ONCE", 30)
    monkeypatch.setattr("runlane.domain.schedule_rules.MAX_CATCH_UP", 5)
    monkeypatch.setattr("runlane.submit.schedule_plans._SLOTS_AT_ONCE", 2)
    await schedules.create(catch_up="all", catch_up_window_seconds=90 * 86400, overlap="allow")
    await schedules.tick(100 * HOUR + 2 * MINUTE)
    firings = await schedules.firings()
    assert sum(firing.count for firing in firings if firing.outcome is FiringOutcome.MISSED) == 95
    started = [firing for firing in firings if firing.outcome is FiringOutcome.STARTED]
    assert len(started) == 5
    assert started == firings[-5:]


async def test_a_pause_starts_nothing_and_its_slots_are_visible(schedules: ScheduleStore) -> None:
    await schedules.create()
    paused = await schedules.verbs.pause("default", "s", "broken upstream", actor="ann")
    assert (paused.status, paused.paused_by, paused.paused_reason) == ("paused", "ann", "broken upstream")
    assert paused.next_due_at_us is None
    await schedules.tick(5 * HOUR + SECOND)
    assert await schedules.firings() == []
    resumed, started = await schedules.verbs.resume("default", "s", actor="ann")
    assert (resumed.status, started) == ("active", [])
    (missed,) = await schedules.firings()
    assert (missed.outcome, missed.count, missed.reason) == (FiringOutcome.MISSED, 5, "paused")
    assert await schedules.runs() == []
    with pytest.raises(WrongState):
        await schedules.verbs.resume("default", "s", actor="ann")
    await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == ["missed", "started"]


@pytest.mark.parametrize(("catch_up", "starts"), [("latest", 1), ("all", 3)])
async def test_the_slots_of_a_pause_run_if_asked(schedules: ScheduleStore, catch_up: Any, starts: int) -> None:
    await schedules.create(overlap="allow")
    await schedules.verbs.pause("default", "s", "why", actor="ann")
    await schedules.pass_time(3 * HOUR + SECOND)
    _, firings = await schedules.verbs.resume("default", "s", actor="ann", catch_up=catch_up)
    assert [firing.outcome.value for firing in firings] == ["started"] * starts
    assert len(await schedules.runs()) == starts


async def test_a_long_pause_starts_nothing(schedules: ScheduleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.domain.schedule_rules._AT_ONCE", 30)
    monkeypatch.setattr("runlane.domain.schedule_rules.MAX_CATCH_UP", 5)
    await schedules.create()
    await schedules.verbs.pause("default", "s", "why", actor="ann")
    await schedules.pass_time(100 * HOUR + SECOND)
    await schedules.verbs.resume("default", "s", actor="ann")
    await schedules.tick()
    (missed,) = await schedules.firings()
    assert (missed.outcome, missed.count) == (FiringOutcome.MISSED, 100)
    assert missed.last_slot_us == missed.slot_us + 99 * HOUR


async def test_a_buffered_slot_waits_for_the_end_of_a_pause(schedules: ScheduleStore) -> None:
    await schedules.create(overlap="queue_all")
    await schedules.tick(HOUR + SECOND)
    await schedules.tick(HOUR + SECOND)
    await schedules.verbs.pause("default", "s", "why", actor="ann")
    await finish_one(schedules.store)
    await schedules.tick()
    assert await schedules.outcomes() == ["started", "buffered"]
    await schedules.verbs.resume("default", "s", actor="ann")
    assert await schedules.outcomes() == ["started", "started"]


async def test_a_trigger_starts_a_run_now_with_its_own_input(schedules: ScheduleStore) -> None:
    await schedules.create(input={"a": 1})
    await schedules.tick(HOUR + SECOND)
    firing = await schedules.verbs.trigger("default", "s", actor="ann", input={"a": 2})
    assert (firing.outcome, firing.kind.value) == (FiringOutcome.STARTED, "manual")
    assert (await schedules.store.get(firing.run_id or "")).input == {"a": 2}
    skipped = await schedules.verbs.trigger("default", "s", actor="ann", overlap="skip")
    assert skipped.outcome is FiringOutcome.SKIPPED_OVERLAP
    found = await schedules.find()
    assert found.fired == 1


async def test_a_buffered_trigger_starts_when_an_ordinary_run_ends(schedules: ScheduleStore) -> None:
    await schedules.create(overlap="skip")
    await schedules.tick(HOUR + SECOND)
    firing = await schedules.verbs.trigger("default", "s", actor="ann", overlap="queue_all")
    assert firing.outcome is FiringOutcome.BUFFERED
    await finish_one(schedules.store)
    assert await schedules.outcomes() == ["started", "started"]


def facts(firings: Any) -> list[tuple[Any, ...]]:
    return [(firing.slot_us, firing.outcome, firing.reason, firing.count) for firing in firings]


async def test_a_dry_run_of_a_backfill_is_what_then_happens(schedules: ScheduleStore) -> None:
    await schedules.create(catch_up="none", overlap="allow")
    await schedules.tick(8 * HOUR + 5 * MINUTE)
    (missed,) = await schedules.firings()
    assert missed.count == 8
    span = (missed.slot_us, missed.slot_us + 4 * HOUR)
    planned = await schedules.verbs.backfill("default", "s", *span, actor="ann", dry_run=True)
    assert await schedules.outcomes() == ["missed"]
    assert await schedules.runs() == []
    done = await schedules.verbs.backfill("default", "s", *span, actor="ann")
    assert facts(done.firings) == facts(planned.firings)
    assert [firing.outcome.value for firing in done.firings] == ["started"] + ["buffered"] * 4
    # What is left of the missed slots is still visible.
    left = (await schedules.firings())[-1]
    assert (left.outcome, left.count, left.slot_us) == (FiringOutcome.MISSED, 3, span[1] + HOUR)
    again = await schedules.verbs.backfill("default", "s", *span, actor="ann")
    assert len(await schedules.runs()) == 1
    assert [firing.outcome.value for firing in again.firings] == ["started"] + ["buffered"] * 4


async def test_a_repeated_backfill_starts_nothing_again(schedules: ScheduleStore) -> None:
    await schedules.create(catch_up="none", overlap="allow")
    await schedules.tick(3 * HOUR + 5 * MINUTE)
    (missed,) = await schedules.firings()
    span = (missed.slot_us, missed.slot_us + HOUR)
    first = await schedules.verbs.backfill("default", "s", *span, actor="ann", overlap="allow")
    runs = await schedules.runs()
    assert len(runs) == 2
    # The runs of the slots are open, so that their slots would be skipped if they were decided again.
    again = await schedules.verbs.backfill("default", "s", *span, actor="ann", overlap="skip")
    assert await schedules.runs() == runs
    assert facts(again.firings) == facts(first.firings)


async def test_a_backfill_in_the_middle_of_missed_slots_reduces_their_count(schedules: ScheduleStore) -> None:
    await schedules.create(catch_up="none", overlap="allow")
    await schedules.tick(8 * HOUR + 5 * MINUTE)
    (missed,) = await schedules.firings()
    first = missed.slot_us + 2 * HOUR
    await schedules.verbs.backfill("default", "s", first, first + HOUR, actor="ann", overlap="allow")
    assert [(firing.outcome.value, firing.count) for firing in await schedules.firings()] == [
        ("missed", 6),
        ("started", 1),
        ("started", 1),
    ]


async def test_a_backfill_is_bounded(schedules: ScheduleStore) -> None:
    created = await schedules.create()
    now = created.created_at_us
    with pytest.raises(InvalidRequest, match="more than 1000 slots"):
        await schedules.verbs.backfill("default", "s", now - 1001 * HOUR, now, actor="ann")
    with pytest.raises(InvalidRequest, match="in the future"):
        await schedules.verbs.backfill("default", "s", now, now + HOUR, actor="ann")
    with pytest.raises(InvalidRequest, match="later than"):
        await schedules.verbs.backfill("default", "s", now, now - HOUR, actor="ann")


async def test_an_edit_of_the_times_begins_after_it(schedules: ScheduleStore) -> None:
    created = await schedules.create()
    await schedules.pass_time(2 * HOUR + SECOND)
    changed = await schedules.verbs.patch(
        "default", "s", {"spec": [{"every_seconds": 1800}]}, actor="ann", version=created.version
    )
    assert (changed.version, changed.generation) == (2, 2)
    await schedules.tick()
    (missed,) = await schedules.firings()
    assert (missed.outcome, missed.reason, missed.count) == (FiringOutcome.MISSED, "edited", 2)
    with pytest.raises(VersionMismatch):
        await schedules.verbs.patch("default", "s", {"name": "x"}, actor="ann", version=1)
    named = await schedules.verbs.patch("default", "s", {"name": "x"}, actor="ann", version=2)
    assert (named.version, named.generation, named.next_slot_us) == (3, 2, changed.next_slot_us)


async def test_an_edit_wins_over_a_plan_that_was_made_before_it(schedules: ScheduleStore) -> None:
    from runlane.store.schedules.firing import apply_plans

    await schedules.create()
    await schedules.pass_time(HOUR + SECOND)
    plan = await schedules.planner.tick(await schedules.find())
    assert plan is not None
    await schedules.verbs.pause("default", "s", "why", actor="ann")
    applied = await schedules.database.transact(lambda session: apply_plans(session, [plan]))
    assert applied.firings == {}
    assert await schedules.runs() == []


async def test_the_same_plan_is_carried_out_once(schedules: ScheduleStore) -> None:
    from runlane.store.schedules.firing import apply_plans

    await schedules.create()
    await schedules.pass_time(HOUR + SECOND)
    plan = await schedules.planner.tick(await schedules.find())
    assert plan is not None
    for _ in range(2):
        await schedules.database.transact(lambda session: apply_plans(session, [plan]))
    assert await schedules.outcomes() == ["started"]
    assert len(await schedules.runs()) == 1


async def test_a_schedule_ends(schedules: ScheduleStore) -> None:
    created = await schedules.create(max_firings=2, overlap="allow")
    assert created.status == "active"
    for _ in range(3):
        await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == ["started", "started"]
    assert (await schedules.verbs.get("default", "s")).status == "ended"
    assert await schedules.verbs.next("default", "s") == []


async def test_limits_of_a_tenant(schedules: ScheduleStore) -> None:
    await create_tenant(schedules.database, "acme", actor="test")
    await set_tenant(schedules.database, "acme", TenantChange(max_schedules=1), actor="test")
    await schedules.create(tenant="acme")
    with pytest.raises(ScheduleLimited):
        await schedules.create("other", tenant="acme")
    await schedules.create()
    with pytest.raises(Conflict):
        await schedules.create()
    with pytest.raises(InvalidRequest, match="shortest period"):
        await schedules.create("fast", spec=[{"every_seconds": 5}])
    await set_tenant(schedules.database, "default", TenantChange(min_schedule_seconds=1), actor="test")
    await schedules.create("fast", spec=[{"every_seconds": 5}])
    with pytest.raises(NotFound):
        await schedules.verbs.get("acme", "fast")


BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"spec": [{"cron": "0 0 9 * * MON"}]}, "six fields"),
    ({"spec": [{"cron": "0 0 30 2 *"}]}, "impossible day"),
    ({"spec": [{"cron": "x"}]}, "exactly five"),
    ({"zone": "Europe/Atlantis"}, "not a time zone"),
    ({"spec": [{"every_seconds": 3}]}, "shortest period"),
    ({"spec": [{"every_seconds": 10}, {"every_seconds": 11}]}, "shortest period"),
    ({"spec": []}, "spec"),
    ({"spec": [{}]}, "exactly one of"),
    ({"spec": [{"cron": "* * * * *", "every_seconds": 60}]}, "exactly one of"),
    ({"spec": [{"at": "2020-01-01T00:00:00Z"}]}, "within the next 10 years"),
    ({"spec": [{"at": "2020-01-01T00:00:00"}]}, "no offset"),
    ({"spec": [{"every_seconds": 60, "anchor": 1700000000}]}, "must be a string"),
    ({"ends_at": "2020-01-01T00:00:00Z"}, "within the next 10 years"),
    ({"spec": [{"cron": "0 0 29 2 *"}], "ends_at": "2027-01-01T00:00:00Z"}, "within the next 10 years"),
    ({"target": {"kind": "chat", "name": "a"}}, "session_id"),
    ({"target": {"kind": "agent", "name": "a"}}, "message"),
    ({"colour": "red"}, "colour"),
    ({"overlap": "maybe"}, "overlap"),
    ({"spread_seconds": 90_000}, "spread_seconds"),
    ({"id": "a b"}, "id"),
]


@pytest.mark.parametrize(("fields", "problem"), BAD_SETTINGS)
async def test_bad_settings_are_refused_as_a_whole(
    schedules: ScheduleStore, fields: dict[str, Any], problem: str
) -> None:
    given = {"schedule_id": "s"} | {"schedule_id" if name == "id" else name: fields[name] for name in fields}
    with pytest.raises(RunlaneError, match=problem):
        await schedules.create(**given)
    assert await schedules.verbs.list(None) == []
    assert await schedules.store.count("audit") == 0


async def test_changes_are_audited(schedules: ScheduleStore) -> None:
    await schedules.create()
    await schedules.verbs.patch("default", "s", {"priority": 3}, actor="ann")
    await schedules.verbs.pause("default", "s", "why", actor="ann")
    await schedules.verbs.resume("default", "s", actor="ann")
    await schedules.verbs.trigger("default", "s", actor="ann")
    await schedules.verbs.delete("default", "s", actor="ann")
    actions = [row["action"] for row in await schedules.store.sql("select action from audit order by id")]
    assert actions == [f"schedule.{verb}" for verb in ("create", "set", "pause", "resume", "trigger", "delete")]
    assert await schedules.store.count("schedule_firings") == 0
    with pytest.raises(NotFound):
        await schedules.find()


async def test_retention_keeps_the_newest_firing(schedules: ScheduleStore) -> None:
    await schedules.create(overlap="allow")
    for _ in range(3):
        await schedules.tick(HOUR + SECOND)
    for _ in range(3):
        await finish_one(schedules.store)
    await schedules.tick()
    await schedules.store.sql("update schedule_firings set decided_at = 1, open = false")
    deleted = await schedules.database.transact(lambda session: delete_old_firings(session, 60))
    assert deleted == 2
    (left,) = await schedules.firings()
    assert left.slot_us == (await schedules.find()).last_slot_us


async def test_the_latest_firings_of_several_schedules_are_read_with_the_status_of_their_runs(
    schedules: ScheduleStore,
) -> None:
    await schedules.create(overlap="allow", max_open=5)
    await schedules.create("other", overlap="allow", max_open=2)
    await schedules.create("paused")
    await schedules.verbs.pause("default", "paused", "not now", actor="test")
    for _ in range(3):
        await schedules.tick(HOUR + SECOND)
    await finish_one(schedules.store)
    await finish_one(schedules.store, dead("boom"))
    listed = await schedules.verbs.list("default", firings=2)
    by_id = {schedule.id: schedule.latest_firings for schedule in listed}
    for name in ("s", "other"):
        whole = await schedules.verbs.firings("default", name)
        assert len(whole) == 3
        assert by_id[name] == tuple(whole[:2])
    firings = [*await schedules.firings("s"), *await schedules.firings("other")]
    statuses = Counter(firing.run_status for firing in firings)
    # A refused one names the open run, and does not have its status.
    assert statuses == {Status.COMPLETED: 1, Status.FAILED: 1, Status.QUEUED: 3, None: 1}
    assert by_id["paused"] == ()
    assert all(schedule.latest_firings == () for schedule in await schedules.verbs.list("default"))


async def test_a_spread_moves_the_start_and_not_the_slot(schedules: ScheduleStore) -> None:
    created = await schedules.create(spread_percent=50)
    assert created.next_slot_us is not None
    assert created.next_due_at_us is not None
    offset = created.next_due_at_us - created.next_slot_us
    assert 0 < offset < HOUR // 2
    await schedules.tick(HOUR + 1)
    assert await schedules.firings() == []
    await schedules.tick(offset)
    (firing,) = await schedules.firings()
    assert firing.due_at_us - firing.slot_us == offset


async def test_another_zone_database_moves_the_next_slot(schedules: ScheduleStore) -> None:
    created = await schedules.create(spec=[{"cron": "0 9 * * *"}], zone="Europe/Berlin")
    await schedules.store.sql("update schedules set zone_version = 'old', next_at = 5, next_due_at = :far", far=2**60)
    await schedules.tick()
    found = await schedules.find()
    assert (found.next_at_us, found.next_due_at_us) == (created.next_slot_us, created.next_due_at_us)


async def test_a_deleted_run_counts_as_ended(schedules: ScheduleStore) -> None:
    await schedules.create()
    await schedules.tick(HOUR + SECOND)
    (run_id,) = await schedules.runs()
    await schedules.store.sql("delete from runs where id = :id", id=run_id)
    await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == ["started", "started"]


async def test_the_doctor_sees_what_is_wrong_with_schedules(schedules: ScheduleStore) -> None:
    def levels(health: ScheduleHealth) -> list[str]:
        return [finding.level.value for finding in schedule_findings(health)]

    assert levels(await read_schedule_health(schedules.database)) == ["ok"]
    await schedules.create()
    await schedules.pass_time(HOUR + 2 * MINUTE)
    late = await read_schedule_health(schedules.database)
    assert (late.active, late.overdue, levels(late)) == (1, 1, ["broken"])
    await set_tenant(schedules.database, "default", TenantChange(max_queued=0), actor="test")
    await schedules.tick()
    failed = await read_schedule_health(schedules.database)
    assert (failed.failed, levels(failed)) == (("s",), ["warning"])
    gone = {"kind": "orchestration", "name": "gone"}
    text = parse_schedule({"id": "s", "target": gone, "spec": [{"every_seconds": 3600}]}).model_dump_json()
    await schedules.store.sql("update schedules set settings = :text", text=text)
    assert (await read_schedule_health(schedules.database)).dangling == ("s",)
