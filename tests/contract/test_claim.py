"""Claiming: rank order, exact caps, exact drains, and nothing for a worker that is gone."""

from __future__ import annotations

import asyncio

import pytest

from runlane.domain.run import Status
from runlane.errors import InvalidRequest, UnknownLane
from runlane.settings import Settings
from runlane.store.queue.claim import claim
from runlane.store.queue.claim_locks import LaneMemory
from runlane.store.queue.lane_names import check_lanes
from runlane.store.queue.lanes import LaneChange, declare_lanes, list_lanes, move_kinds, set_lane
from runlane.store.queue.workers import begin_draining
from runlane.store.sql.database import Database, open_database
from tests.harness import Store, completed, dead, eventually, new_run


async def running(store: Store, lane: str = "default") -> int:
    rows = await store.sql("select count(*) as n from runs where status = 'running' and lane = :lane", lane=lane)
    return rows[0]["n"]


async def test_a_claim_makes_the_run_the_workers_own(store: Store) -> None:
    run_id = await store.add(input='{"a":1}', ordering_key="k")
    worker = await store.worker()
    (claimed,) = await store.claim(worker)
    run = await store.get(run_id)
    assert (run.status, run.attempt, run.worker_id) == (Status.RUNNING, 1, worker)
    assert (claimed.run_id, claimed.attempt, claimed.input, claimed.saved) == (run_id, 1, '{"a":1}', None)
    assert claimed.ordering_key == "k"
    assert claimed.claimed_at_us == run.claimed_at_us
    events = await store.check_stream(run_id)
    assert (events[-1].type, events[-1].attempt, events[-1].data) == (
        "worker_picked_up",
        1,
        {"worker_id": worker, "tries": 1},
    )
    assert await store.claim(worker) == []


async def test_runs_come_by_priority_and_then_by_age(store: Store) -> None:
    requests = [new_run(priority=priority) for priority in (0, 10, -10, 10, 0)]
    await store.add_all(*requests)
    claims = await store.claim(await store.worker())
    assert [claimed.run_id for claimed in claims] == [requests[position].id for position in (1, 3, 0, 4, 2)]


async def test_no_more_than_the_free_slots(store: Store) -> None:
    await store.add_all(*(new_run() for _ in range(10)))
    worker = await store.worker()
    assert [len(await store.claim(worker, slots)) for slots in (3, 4, 9)] == [3, 4, 3]


@pytest.mark.parametrize(
    "fields",
    [{"delay_us": 60_000_000}, {"hold": True}, {"target": "unknown"}],
    ids=["scheduled", "held", "unknown target"],
)
async def test_only_ready_runs_of_known_targets_are_claimed(store: Store, fields: dict[str, object]) -> None:
    await store.add(**fields)
    assert await store.claim(await store.worker()) == []


async def test_a_lane_without_a_row_is_served_with_default_settings(store: Store) -> None:
    run_id = await store.add(lane="elsewhere")
    assert [claimed.run_id for claimed in await store.claim(await store.worker())] == [run_id]


async def test_unknown_targets_do_not_hide_known_ones(store: Store) -> None:
    await store.add_all(*(new_run(target="unknown", priority=100) for _ in range(20)))
    run_id = await store.add()
    assert [claimed.run_id for claimed in await store.claim(await store.worker(), 1)] == [run_id]


async def test_a_worker_serves_only_its_lanes(store: Store) -> None:
    await declare_lanes(store.database, ["media"])
    await store.add()
    media = await store.add(lane="media")
    claims = await store.claim(await store.worker(), memory=LaneMemory(only=frozenset({"media"})))
    assert [claimed.run_id for claimed in claims] == [media]


async def test_a_long_backlog_in_one_lane_does_not_hold_up_another(store: Store) -> None:
    await declare_lanes(store.database, ["media"])
    await store.add_all(*(new_run() for _ in range(100)))
    await store.add_all(*(new_run(lane="media") for _ in range(5)))
    lanes = [claimed.lane for claimed in await store.claim(await store.worker(), 10)]
    assert lanes.count("media") == 5


async def test_a_new_lane_is_served_without_a_restart(store: Store) -> None:
    worker, memory = await store.worker(), LaneMemory()
    assert await store.claim(worker, memory=memory) == []
    await set_lane(store.database, "new", LaneChange(max_slots=1), create=True)
    await store.add_all(new_run(lane="new"), new_run(lane="new"))
    assert len(await store.claim(worker, memory=memory)) == 1


@pytest.mark.parametrize("change", [LaneChange(max_slots=0), LaneChange(enabled=False)])
async def test_a_paused_lane_starts_nothing(store: Store, change: LaneChange) -> None:
    await store.add()
    memory = LaneMemory()
    worker = await store.worker()
    await set_lane(store.database, "default", change)
    assert await store.claim(worker, memory=memory) == []
    await set_lane(store.database, "default", LaneChange(enabled=True, uncapped=True))
    assert len(await store.claim(worker, memory=memory)) == 1


async def test_a_cap_counts_what_really_runs(store: Store) -> None:
    await store.add_all(*(new_run() for _ in range(6)))
    await set_lane(store.database, "default", LaneChange(max_slots=2))
    one, two = await store.worker(), await store.worker()
    first = await store.claim(one)
    assert len(first) == 2
    assert await store.claim(two) == []
    await store.finish(first[0], completed())
    assert len(await store.claim(two)) == 1
    await store.finish(first[1], dead())
    assert len(await store.claim(two)) == 1
    await set_lane(store.database, "default", LaneChange(max_slots=3))
    assert len(await store.claim(one)) == 1


async def test_a_cap_lowered_below_what_runs_stops_nothing_and_starts_nothing(store: Store) -> None:
    await store.add_all(*(new_run() for _ in range(4)))
    worker = await store.worker()
    claims = await store.claim(worker, 3)
    await set_lane(store.database, "default", LaneChange(max_slots=1))
    assert await store.claim(worker) == []
    assert await running(store) == 3
    await store.finish(claims[0])
    assert await store.claim(worker) == []


async def several(settings: Settings, count: int) -> list[Database]:
    return [await open_database(settings, 2) for _ in range(count)]


async def test_a_cap_is_exact_while_many_claim_at_once(store: Store) -> None:
    await set_lane(store.database, "default", LaneChange(max_slots=3))
    await store.add_all(*(new_run() for _ in range(60)))
    databases = await several(store.settings, 4)
    seen: list[int] = []
    finished: list[str] = []

    async def work(database: Database) -> None:
        mine = Store(store.settings, database)
        worker, memory = await mine.worker(), LaneMemory()
        while len(finished) < 60:
            for claimed in await mine.claim(worker, 5, memory=memory):
                seen.append(await running(mine))
                await mine.finish(claimed)
                finished.append(claimed.run_id)

    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(work(database) for database in databases))
    finally:
        for database in databases:
            await database.close()
    assert max(seen) <= 3
    assert len(set(finished)) == 60


async def test_no_run_is_claimed_twice_by_many_at_once(store: Store) -> None:
    requests = [new_run() for _ in range(200)]
    await store.add_all(*requests)
    databases = await several(store.settings, 4)

    async def work(database: Database) -> list[str]:
        mine = Store(store.settings, database)
        worker, memory = await mine.worker(), LaneMemory()
        taken: list[str] = []
        while claims := await mine.claim(worker, 7, memory=memory):
            taken += [claimed.run_id for claimed in claims]
        return taken

    try:
        async with asyncio.timeout(60):
            taken = await asyncio.gather(*(work(database) for database in databases))
    finally:
        for database in databases:
            await database.close()
    everything = [run_id for part in taken for run_id in part]
    # One that skipped a row which another was just taking may stop early; nothing may be taken twice.
    assert len(everything) == len(set(everything))
    rest = await store.claim(await store.worker(), 500)
    assert sorted([*everything, *(claimed.run_id for claimed in rest)]) == sorted(run.id for run in requests)


@pytest.mark.parametrize("change", [LaneChange(enabled=False), LaneChange(max_slots=0)])
async def test_a_drain_is_exact_when_it_returns(store: Store, change: LaneChange) -> None:
    """Claims hammer the lane; from the moment the change returned, none of them takes a run."""
    databases = await several(store.settings, 3)
    stopped = False
    taken: list[str] = []

    async def hammer(database: Database) -> None:
        mine = Store(store.settings, database)
        # Nothing renews these leases, and on a busy machine the test may take minutes.
        worker, memory = await mine.worker(lease_seconds=3600), LaneMemory()
        while not stopped:
            claims = await mine.claim(worker, 1, memory=memory)
            taken.extend(claimed.run_id for claimed in claims)
            if claims:
                # However fast claims are compared with the changes below, there is always a run to take.
                await mine.add_all(*(new_run() for _ in claims))

    await store.add_all(*(new_run() for _ in range(100)))
    hammers = [asyncio.create_task(hammer(database)) for database in databases]
    try:
        async with asyncio.timeout(240):
            for _ in range(5):
                enough = len(taken) + 3
                await eventually(lambda enough=enough: len(taken) >= enough, "claims")
                await set_lane(store.database, "default", change)
                frozen = await running(store)
                for _ in range(20):
                    assert await running(store) == frozen
                await set_lane(store.database, "default", LaneChange(enabled=True, uncapped=True))
    finally:
        stopped = True
        await asyncio.gather(*hammers)
        for database in databases:
            await database.close()


async def test_a_moved_kind_takes_its_waiting_runs_along(store: Store) -> None:
    await declare_lanes(store.database, ["bulk"])
    waiting = [
        await store.add(),
        await store.add(delay_us=60_000_000),
        await store.add(hold=True),
    ]
    (blocked_head, blocked) = await store.add_all(new_run(ordering_key="k"), new_run(ordering_key="k"))
    other = await store.add(target="other")
    in_flight = await store.claim(await store.worker(), 1)
    assert in_flight[0].run_id == waiting[0]
    assert await move_kinds(store.database, ["job"], "bulk") == 4
    for run_id in (*waiting[1:], blocked_head.run_id, blocked.run_id):
        assert (await store.get(run_id)).lane == "bulk"
    assert (await store.get(waiting[0])).lane == "default"
    assert (await store.get(other)).lane == "default"
    assert await move_kinds(store.database, ["job"], "bulk") == 0


async def test_more_runs_move_than_one_transaction_takes(store: Store) -> None:
    await declare_lanes(store.database, ["bulk"])
    # The statistics of a queue that was empty when they were collected.
    await store.add_all(*(new_run() for _ in range(1_000)))
    await store.sql("delete from runs")
    await store.sql("analyze runs")
    await store.add_all(*(new_run() for _ in range(6_001)))
    assert await move_kinds(store.database, ["job"], "bulk") == 6_001


@pytest.mark.parametrize("state", ["lost", "expired", "draining", "offline", "unknown"])
async def test_a_worker_that_is_not_online_claims_nothing(store: Store, state: str) -> None:
    run_id = await store.add()
    worker = await store.worker()
    match state:
        case "expired":
            await store.sql("update workers set lease_until = 1")
        case "draining":
            await begin_draining(store.database, worker, 30.0)
        case "unknown":
            worker = "wrk_unknown"
        case _:
            await store.sql("update workers set status = :state", state=state)
    outcome = await store.database.transact(
        lambda session: claim(session, worker, ["job"], 5, LaneMemory(names={"default": None}))
    )
    assert not outcome.alive
    assert outcome.claims == ()
    assert await store.status(run_id) is Status.QUEUED


async def test_lanes_are_listed_with_what_they_hold(store: Store) -> None:
    await declare_lanes(store.database, ["media"])
    await move_kinds(store.database, ["video", "audio"], "media")
    await set_lane(store.database, "media", LaneChange(max_slots=4, poll_interval_ms=100))
    first = await store.add(lane="media")
    await store.add_all(new_run(lane="media"), new_run(lane="media", delay_us=60_000_000))
    await store.claim(await store.worker(), 1)
    media = next(lane for lane in await list_lanes(store.database) if lane.name == "media")
    assert (media.enabled, media.max_slots, media.poll_interval_ms) == (True, 4, 100)
    assert (media.running, media.queued, media.kinds) == (1, 1, ("audio", "video"))
    assert media.oldest_queued_at_us is not None
    assert media.oldest_queued_at_us >= (await store.get(first)).accepted_at_us
    default = next(lane for lane in await list_lanes(store.database) if lane.name == "default")
    assert (default.max_slots, default.running, default.queued, default.oldest_queued_at_us) == (None, 0, 0, None)


async def test_a_change_leaves_alone_what_it_does_not_name(store: Store) -> None:
    await set_lane(store.database, "default", LaneChange(max_slots=4, poll_interval_ms=100, enabled=False))
    _, now = await set_lane(store.database, "default", LaneChange(enabled=True))
    assert (bool(now["enabled"]), now["max_slots"], now["poll_interval_ms"]) == (True, 4, 100)
    _, now = await set_lane(store.database, "default", LaneChange(uncapped=True))
    assert now["max_slots"] is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (LaneChange(max_slots=-1), "max_slots=-1 is out of bounds: it must be between 0 and 10000"),
        (LaneChange(max_slots=10_001), "max_slots=10001"),
        (LaneChange(poll_interval_ms=49), "poll_interval_ms=49 is out of bounds: it must be between 50 and 120000"),
        (LaneChange(poll_interval_ms=120_001), "poll_interval_ms=120001"),
    ],
)
async def test_a_setting_out_of_bounds_changes_nothing(store: Store, change: LaneChange, expected: str) -> None:
    before = await list_lanes(store.database)
    with pytest.raises(InvalidRequest) as caught:
        await set_lane(store.database, "default", change)
    assert expected in str(caught.value)
    assert await list_lanes(store.database) == before


async def test_an_unknown_lane_is_refused_with_the_nearest_name(store: Store) -> None:
    for work in (
        set_lane(store.database, "defualt", LaneChange(enabled=False)),
        move_kinds(store.database, ["job"], "defualt"),
        check_lanes(store.database, ["default", "defualt"]),
    ):
        with pytest.raises(UnknownLane, match=r'No lane "defualt" exists \(did you mean "default"\?\)'):
            await work
