"""Schedules against what happens at the same time: open runs, pauses, edits, and the claims of workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final, Literal

import pytest

from runlane.domain.firing import FiringOutcome
from runlane.domain.run import Status
from runlane.errors import Conflict
from runlane.store.queue.claim import Claimed
from runlane.store.queue.ordering import key_locks
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.run_changes import cancel_run
from runlane.store.schedules.due import AT_ONCE
from runlane.store.schedules.firing import FiringPlan
from runlane.store.schedules.rows import StoredSchedule
from runlane.store.sql.database import Session
from runlane.submit.schedule_plans import SchedulePlanner
from tests.harness import Store, dead
from tests.scale import scaled
from tests.schedules import HOUR, SECOND, ScheduleStore

PAUSED: Final = Finish(AttemptOutcome.PAUSED, Status.PAUSED)
ROUNDS: Final = scaled(6, 40)
PreviousRun = Literal["shorter", "failed", "longer", "paused"]

# The outcomes of the first two slots when the second is due, and after the end of the first run. A slot that starts
# with that end was started by its transaction, because no service has run in between.
AT_ONCE_STARTED: Final = (["started", "started"], ["started", "started"])
SKIPPED: Final = (["started", "skipped_overlap"], ["started", "skipped_overlap"])
BUFFERED: Final = (["started", "buffered"], ["started", "started"])
OVERLAPS: Final[dict[tuple[str, PreviousRun], tuple[list[str], list[str]]]] = {
    **{
        (policy, previous): AT_ONCE_STARTED
        for policy in ("skip", "queue_one", "queue_all", "cancel_previous", "allow")
        for previous in ("shorter", "failed")
    },
    ("skip", "longer"): SKIPPED,
    ("skip", "paused"): SKIPPED,
    ("queue_one", "longer"): BUFFERED,
    ("queue_one", "paused"): BUFFERED,
    ("queue_all", "longer"): BUFFERED,
    ("queue_all", "paused"): BUFFERED,
    ("cancel_previous", "longer"): BUFFERED,
    ("cancel_previous", "paused"): AT_ONCE_STARTED,
    ("allow", "longer"): AT_ONCE_STARTED,
    ("allow", "paused"): AT_ONCE_STARTED,
}


@pytest.fixture
def schedules(store: Store) -> ScheduleStore:
    return ScheduleStore(store)


async def _execute(store: Store, previous: PreviousRun) -> Claimed:
    """Execute the run of the first slot up to where the second one finds it."""
    claimed = await store.claim_one()
    match previous:
        case "shorter":
            await store.finish(claimed)
        case "failed":
            await store.finish(claimed, dead())
        case "paused":
            await store.finish(claimed, PAUSED)
        case "longer":
            pass
    return claimed


@pytest.mark.parametrize(("policy", "previous"), OVERLAPS)
async def test_each_overlap_policy_with_each_previous_run(
    schedules: ScheduleStore, policy: str, previous: PreviousRun
) -> None:
    due, after = OVERLAPS[policy, previous]
    await schedules.create(overlap=policy)
    await schedules.tick(HOUR + SECOND)
    first = await _execute(schedules.store, previous)
    await schedules.tick(HOUR + SECOND)
    assert await schedules.outcomes() == due
    run = await schedules.store.get(first.run_id)
    assert (run.cancel_requested_at_us is not None) == (policy == "cancel_previous" and not _ended(previous))
    if previous == "longer":
        await schedules.store.finish(first)
    elif not run.status.terminal:
        await cancel_run(schedules.database, first.run_id)
    assert await schedules.outcomes() == after
    started = [firing for firing in await schedules.firings() if firing.outcome is FiringOutcome.STARTED]
    assert [firing.run_id for firing in started] == await schedules.runs()


def _ended(previous: PreviousRun) -> bool:
    return previous in ("shorter", "failed")


async def _together(*work: Awaitable[object]) -> None:
    """Run everything at once. Of two changes of one schedule, one may be refused."""

    async def tolerant(one: Awaitable[object]) -> None:
        with suppress(Conflict):
            await one

    await asyncio.gather(*(tolerant(one) for one in work))


async def test_pauses_race_with_the_processes_that_decide(schedules: ScheduleStore) -> None:
    await schedules.create(overlap="allow", max_open=1000)
    verbs = schedules.verbs
    for number in range(ROUNDS):
        await schedules.pass_time(HOUR + SECOND)
        await _together(schedules.tick(), verbs.pause("default", "s", "race", actor="ann"), schedules.tick())
        await schedules.tick()
        before = await schedules.runs()
        await schedules.pass_time(HOUR + SECOND)
        await schedules.tick()
        assert await schedules.runs() == before, "a paused schedule has started a run"
        catch_up = ("none", "latest", "all")[number % 3]
        resumed = verbs.resume("default", "s", actor="ann", catch_up=catch_up)
        await _together(schedules.tick(), resumed, schedules.tick())
        await schedules.tick()
    firings = await schedules.firings()
    assert {firing.outcome for firing in firings} <= {FiringOutcome.STARTED, FiringOutcome.MISSED}
    # Each slot was started or counted as missed, and none both.
    assert sum(firing.count for firing in firings) == 2 * ROUNDS
    slots = [firing.slot_us + number * HOUR for firing in firings for number in range(firing.count)]
    assert slots == [slots[0] + number * HOUR for number in range(2 * ROUNDS)]
    started = [firing.run_id for firing in firings if firing.outcome is FiringOutcome.STARTED]
    assert sorted(filter(None, started)) == sorted(await schedules.runs())


async def test_edits_race_with_the_processes_that_decide(schedules: ScheduleStore) -> None:
    await schedules.create(overlap="allow", max_open=1000, catch_up="all", catch_up_window_seconds=86400)
    for number in range(ROUNDS):
        await schedules.pass_time(HOUR + SECOND)
        seconds = 1800 if number % 2 else 3600
        spec = {"spec": [{"every_seconds": seconds}], "name": f"edit {number}"}
        edit = schedules.verbs.patch("default", "s", spec, actor="ann")
        await _together(schedules.tick(), edit, schedules.tick())
        await schedules.tick()
        found = await schedules.find()
        assert found.generation == number + 1, "an edit was lost"
        assert found.next_at_us is not None
        # What was due under the old times is decided once, and the next slot is one of the new times.
        assert found.now_us < found.next_at_us <= found.now_us + seconds * SECOND
    firings = await schedules.firings()
    slots = [firing.slot_us for firing in firings]
    assert slots == sorted(set(slots))
    started = [firing.run_id for firing in firings if firing.outcome is FiringOutcome.STARTED]
    assert sorted(filter(None, started)) == sorted(await schedules.runs())


async def test_workers_claim_between_the_passes_of_many_due_schedules(schedules: ScheduleStore) -> None:
    count = scaled(AT_ONCE + 20, 10_000)
    for number in range(count):
        await schedules.create(f"s{number}")
    await schedules.store.add()
    await schedules.pass_time(HOUR + SECOND)
    service = schedules.service()
    assert await service.run_once()
    # A pass is bounded, so the lock of the database and the bell are free before everything is decided.
    assert len(await schedules.runs()) == AT_ONCE + 1
    assert (await schedules.store.claim_one()).target != ""
    while await service.run_once():
        pass
    assert len(await schedules.runs()) == count + 1


async def test_a_statement_that_waits_does_not_hold_up_other_schedules(schedules: ScheduleStore) -> None:
    if schedules.database.dialect == "sqlite":
        return  # it has one writer, and the wait for the file is bounded by its own timeout
    await schedules.create("held", ordering_key="slow")
    for number in range(3):
        await schedules.create(f"free{number}")
    await schedules.pass_time(HOUR + SECOND)
    locked, done = asyncio.Event(), asyncio.Event()

    async def hold(session: Session) -> None:
        await session.lock(exclusive=key_locks(["slow"]))
        locked.set()
        await done.wait()

    holder = asyncio.create_task(schedules.database.transact(hold))
    await locked.wait()
    service = schedules.service(max_seconds=0.5)
    while await service.run_once():
        pass
    assert [await schedules.outcomes(f"free{number}") for number in range(3)] == [["started"]] * 3
    found = await schedules.find("held")
    assert found.next_due_at_us is not None
    assert found.next_due_at_us > found.now_us, "it is not left for a minute"
    assert await schedules.outcomes("held") == []
    done.set()
    await holder
    await schedules.tick(HOUR)
    assert (await schedules.outcomes("held"))[-1] == "started"


async def test_a_plan_that_waits_does_not_hold_up_other_schedules(
    schedules: ScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await schedules.create("held")
    await schedules.create("free")
    await schedules.pass_time(HOUR + SECOND)
    tick = SchedulePlanner.tick

    async def slow(planner: SchedulePlanner, schedule: StoredSchedule) -> FiringPlan | None:
        if schedule.id == "held":
            await asyncio.Event().wait()
        return await tick(planner, schedule)

    monkeypatch.setattr(SchedulePlanner, "tick", slow)
    service = schedules.service(max_seconds=0.5)
    while await service.run_once():
        pass
    assert (await schedules.outcomes("held"), await schedules.outcomes("free")) == ([], ["started"])
