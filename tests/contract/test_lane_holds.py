"""Holds, creation and deletion of lanes: exact when a call returns, and no owner undoes another's hold."""

from __future__ import annotations

import pytest

from runlane.domain.lane import MAX_HOLDS
from runlane.errors import Conflict, InvalidRequest, NotFound, UnknownLane
from runlane.store.access.audit import list_audit
from runlane.store.queue.claim_locks import LaneMemory
from runlane.store.queue.lane_holds import hold_lane, list_holds, release_hold
from runlane.store.queue.lanes import (
    LaneChange,
    create_lane,
    declare_lanes,
    delete_lane,
    list_lanes,
    move_kinds,
    set_lane,
    unassign_kinds,
)
from runlane.store.queue.workers import renew
from tests.harness import Store, entry_of


async def hold(store: Store, owner: str, seconds: float | None = None) -> str:
    placed = await hold_lane(store.database, "default", owner=owner, reason="a test", expires_in_seconds=seconds)
    return placed.id


async def test_a_lane_starts_nothing_while_any_hold_is_active(store: Store) -> None:
    run_id = await store.add()
    worker, memory = await store.worker(), LaneMemory()
    restore, operator = await hold(store, "restore"), await hold(store, "operator")
    assert await store.claim(worker, 5, memory=memory) == []
    assert [held.owner for held in await list_holds(store.database, "default")] == ["restore", "operator"]
    await release_hold(store.database, "default", restore)
    assert await store.claim(worker, 5, memory=memory) == []
    (lane,) = await list_lanes(store.database)
    assert (lane.held, [held.owner for held in lane.holds]) == (True, ["operator"])
    await release_hold(store.database, "default", operator)
    assert [claimed.run_id for claimed in await store.claim(worker, 5, memory=memory)] == [run_id]


async def test_the_switch_and_a_hold_do_not_undo_each_other(store: Store) -> None:
    await store.add()
    worker, memory = await store.worker(), LaneMemory()
    await set_lane(store.database, "default", LaneChange(enabled=False))
    placed = await hold(store, "restore")
    await release_hold(store.database, "default", placed)
    assert await store.claim(worker, 5, memory=memory) == []
    await hold(store, "restore")
    await set_lane(store.database, "default", LaneChange(enabled=True))
    assert await store.claim(worker, 5, memory=memory) == []


async def test_a_hold_ends_by_itself(store: Store) -> None:
    await store.add()
    worker, memory = await store.worker(), LaneMemory()
    await hold(store, "restore", seconds=3600)
    assert await store.claim(worker, 5, memory=memory) == []
    await store.sql("update lane_holds set expires_at = 1")
    await store.sql("update lanes set held_until = 1")
    assert await list_holds(store.database, "default") == []
    assert len(await store.claim(worker, 5, memory=memory)) == 1
    # A new hold is not ended by the old one.
    await hold(store, "operator")
    await store.add()
    assert await store.claim(worker, 5, memory=memory) == []
    rows = await store.sql("select owner from lane_holds")
    assert rows == [{"owner": "operator"}]


async def test_a_released_hold_leaves_the_longer_one(store: Store) -> None:
    long = await hold(store, "long", seconds=3600)
    short = await hold(store, "short", seconds=60)
    await release_hold(store.database, "default", long)
    (lane,) = await store.sql("select held_until, (select expires_at from lane_holds) as expires_at from lanes")
    assert lane["held_until"] == lane["expires_at"]
    await release_hold(store.database, "default", short)
    assert await store.sql("select held_until from lanes") == [{"held_until": None}]


async def test_holds_are_checked_and_bounded(store: Store) -> None:
    with pytest.raises(UnknownLane):
        await hold_lane(store.database, "nowhere", owner="me", reason="why")
    with pytest.raises(InvalidRequest, match="expires_in_seconds=0"):
        await hold(store, "me", seconds=0)
    with pytest.raises(NotFound, match="has no active hold"):
        await release_hold(store.database, "default", "hold_unknown")
    for number in range(MAX_HOLDS):
        await hold(store, f"owner-{number}")
    with pytest.raises(Conflict, match="Release some"):
        await hold(store, "one too many")
    actions = {entry.action for entry in await list_audit(store.database, limit=1000)}
    assert "lane.hold" in actions


async def test_a_lane_is_created_once_and_deleted_when_no_run_uses_it(store: Store) -> None:
    settings = await create_lane(store.database, "slow", LaneChange(max_slots=1, fair=False, priority_seconds=60))
    assert (settings["max_slots"], settings["fair"], settings["priority_seconds"]) == (1, False, 60)
    with pytest.raises(Conflict, match="exists"):
        await create_lane(store.database, "slow", LaneChange())
    waiting = await store.add(lane="slow")
    with pytest.raises(Conflict, match="Wait until these runs have ended"):
        await delete_lane(store.database, "slow")
    await store.finish((await store.claim(await store.worker(), 5))[0])
    assert (await store.get(waiting)).status.terminal
    await move_kinds(store.database, ["report"], "slow")
    with pytest.raises(Conflict, match='"report" is assigned'):
        await delete_lane(store.database, "slow")
    await unassign_kinds(store.database, ["report"])
    placed = await hold_lane(store.database, "slow", owner="me", reason="why")
    with pytest.raises(Conflict, match="has holds"):
        await delete_lane(store.database, "slow")
    await release_hold(store.database, "slow", placed.id)
    await delete_lane(store.database, "slow")
    assert [lane.name for lane in await list_lanes(store.database)] == ["default"]
    with pytest.raises(UnknownLane):
        await delete_lane(store.database, "slow")
    with pytest.raises(InvalidRequest, match="always exists"):
        await delete_lane(store.database, "default")


async def test_a_run_without_progress_is_interrupted_where_the_lane_says_so(store: Store) -> None:
    await declare_lanes(store.database, ["other"])
    worker = await store.worker()
    for lane in ("default", "other"):
        await store.add(lane=lane)
    claims = {claimed.lane: claimed for claimed in await store.claim(worker, 5)}
    await store.sql("update runs set claimed_at = claimed_at - 600000000")
    assert await renew(store.database, worker, 600, 2) == []
    await set_lane(store.database, "default", LaneChange(stale_timeout_minutes=5))
    stale = claims["default"]
    assert await renew(store.database, worker, 600, 2) == [(stale.run_id, stale.attempt, 5)]
    # What it stores is progress, even without an event.
    await store.record(entry_of(stale, progress=0.5))
    assert await renew(store.database, worker, 600, 2) == []
    await store.sql("update runs set recorded_at = recorded_at - 600000000")
    assert await renew(store.database, worker, 600, 2) == [(stale.run_id, stale.attempt, 5)]
    await set_lane(store.database, "default", LaneChange(unbounded=True))
    assert await renew(store.database, worker, 600, 2) == []
    # A cancelled run is cancelled and not retried.
    await set_lane(store.database, "default", LaneChange(stale_timeout_minutes=5))
    await store.sql("update runs set cancel_requested_at = 1 where id = :id", id=stale.run_id)
    assert await renew(store.database, worker, 600, 2) == [(stale.run_id, stale.attempt, None)]
