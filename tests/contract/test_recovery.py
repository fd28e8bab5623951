"""A restored database: no schedule fires for the past, no message is sent again, and a repeat changes nothing."""

from __future__ import annotations

import pytest

from runlane.domain.firing import FiringOutcome
from runlane.store.queue.lane_holds import list_holds
from runlane.store.queue.lanes import list_lanes
from runlane.store.recovery import HOLD_OWNER, NOT_SENT, Recovery, recover
from runlane.store.webhooks.deliveries import list_deliveries, replay_delivery
from tests.contract.test_webhooks import claim, endpoint, send
from tests.harness import Store, new_run
from tests.schedules import HOUR, SECOND, ScheduleStore


@pytest.fixture
def schedules(store: Store) -> ScheduleStore:
    return ScheduleStore(store)


async def recovered(store: Store, *, dry_run: bool = False, hold_lanes: bool = False) -> Recovery:
    return await recover(
        store.database, skip_slots=True, stop_deliveries=True, hold_lanes=hold_lanes, dry_run=dry_run, actor="test"
    )


async def test_slots_that_passed_since_the_backup_are_missed_and_start_nothing(schedules: ScheduleStore) -> None:
    await schedules.create(catch_up="all", catch_up_window_seconds=86_400)
    await schedules.pass_time(3 * HOUR + SECOND)
    dry = await recovered(schedules.store, dry_run=True)
    assert (dry.schedules, dry.missed_slots, await schedules.firings()) == (1, 3, [])
    done = await recovered(schedules.store)
    assert (done.schedules, done.missed_slots) == (1, 3)
    (firing,) = await schedules.firings()
    assert (firing.outcome, firing.reason, firing.count) == (FiringOutcome.MISSED, "restored", 3)
    await schedules.tick()
    assert await schedules.runs() == []
    again = await recovered(schedules.store)
    assert (again.schedules, again.missed_slots) == (0, 0)
    # The next slot fires as usual.
    await schedules.tick(HOUR)
    assert len(await schedules.runs()) == 1


async def test_messages_of_the_backup_are_not_sent_until_they_are_replayed(store: Store) -> None:
    await endpoint(store)
    await send(store, 3)
    (claimed, *_) = await claim(store, 1)
    assert (await recovered(store, dry_run=True)).deliveries == 3
    assert (await recovered(store)).deliveries == 3
    assert await claim(store) == []
    failed = await list_deliveries(store.database, status="failed")
    assert {item.error for item in failed} == {NOT_SENT}
    await replay_delivery(store.database, claimed.id, max_tries=1, actor="test")
    assert [item.message_id for item in await claim(store)] == [claimed.message_id]


async def test_held_lanes_start_nothing_and_are_held_once(store: Store) -> None:
    await store.accept(new_run())
    names = {lane.name for lane in await list_lanes(store.database)}
    done = await recovered(store, hold_lanes=True)
    assert (set(done.held_lanes), done.continuing) == (names, 1)
    await recovered(store, hold_lanes=True)
    for name in names:
        assert [hold.owner for hold in await list_holds(store.database, name)] == [HOLD_OWNER]
    assert await store.claim(await store.worker()) == []
