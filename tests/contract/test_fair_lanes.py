"""Fair lanes: tenants that share a lane start equally often, and a single tenant keeps the order and cost it had."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from runlane.bus.memory import MemoryBus
from runlane.domain.run import Accepted, Status
from runlane.domain.tenant import DEFAULT_TENANT, TenantLimits
from runlane.maintenance.reaper import Reaper
from runlane.store.access.tenants import TenantChange, create_tenant, delete_tenant, set_tenant
from runlane.store.queue.accept import accept, accept_alone
from runlane.store.queue.claim_locks import LaneMemory
from runlane.store.queue.committer import Committer
from runlane.store.queue.lanes import LaneChange, declare_lanes, move_kinds, set_lane
from runlane.store.queue.revival import retry_run
from runlane.store.queue.run_changes import approve_run, set_priority
from runlane.store.queue.timers import queue_due
from runlane.store.sql.database import Session
from tests.harness import Store, dead, failed_once, new_run
from tests.scale import scaled

GREEDY, MODEST = "greedy", "modest"


async def two_tenants(store: Store, **limits: int) -> None:
    for name in (GREEDY, MODEST):
        await create_tenant(store.database, name, limits=TenantLimits(**limits), actor="test")


async def add(store: Store, tenant: str, count: int, **fields: Any) -> list[str]:
    """Accept runs in batches, as a bulk request does."""
    ids: list[str] = []
    for first in range(0, count, 1000):
        batch = [new_run(tenant=tenant, **fields) for _ in range(min(1000, count - first))]
        ids += [accepted.run_id for accepted in await store.add_all(*batch)]
    return ids


async def starts(store: Store, count: int, *, slots: int = 1) -> list[str]:
    """Claim and finish that many runs; return their tenants in the order of their starts."""
    worker, memory = await store.worker(), LaneMemory()
    order: list[str] = []
    while len(order) < count:
        claims = await store.claim(worker, slots, memory=memory)
        if not claims:
            break
        order += [claimed.tenant for claimed in claims]
        for claimed in claims:
            await store.finish(claimed)
    return order


async def tags(store: Store, ids: Sequence[str]) -> list[tuple[int, int | None]]:
    rows = await store.sql("select id, rank, start_tag from runs")
    found = {row["id"]: (row["rank"], row["start_tag"]) for row in rows}
    return [found[run_id] for run_id in ids]


async def test_a_single_tenant_keeps_the_time_of_acceptance_and_the_short_statement(store: Store) -> None:
    ids = await add(store, DEFAULT_TENANT, 3)
    assert [tag for _, tag in await tags(store, ids)] == [None, None, None]
    assert await store.count("lane_shares") == 0
    alone = await accept_alone(store.database, [new_run(), new_run(priority=7)])
    assert alone is not None
    rows = await store.sql("select rank, accepted_at, priority from runs where priority = 7")
    assert rows[0]["rank"] == rows[0]["accepted_at"] - 7 * 600_000_000


@pytest.mark.parametrize("slots", [1, 4])
async def test_ten_runs_begin_within_two_turnovers_each_behind_a_long_queue(store: Store, slots: int) -> None:
    await two_tenants(store)
    await add(store, GREEDY, scaled(2_000, 100_000))
    await starts(store, 40, slots=slots)
    await add(store, MODEST, 10)
    begun = await starts(store, 20 + slots, slots=slots)
    assert begun.count(MODEST) == 10
    places = [place for place, tenant in enumerate(begun) if tenant == MODEST]
    assert all(later - earlier <= 2 * slots for earlier, later in zip([-1, *places], places, strict=False))


async def test_a_batch_has_tags_by_position_and_tenants_interleave(store: Store) -> None:
    await two_tenants(store)
    batch = [new_run(tenant=tenant) for tenant in (GREEDY, MODEST) for _ in range(50)]
    await store.add_all(*batch)
    for tenant in (GREEDY, MODEST):
        ranks = await tags(store, [run.id for run in batch if run.tenant == tenant])
        assert ranks == sorted(set(ranks))
    begun = await starts(store, 100)
    assert all(set(begun[place : place + 2]) == {GREEDY, MODEST} for place in range(0, 100, 2))


async def test_an_idle_tenant_saves_no_credit(store: Store) -> None:
    await two_tenants(store)
    await add(store, GREEDY, 60)
    await starts(store, 60)
    await add(store, GREEDY, 40)
    await add(store, MODEST, 40)
    begun = Counter(await starts(store, 40))
    assert abs(begun[GREEDY] - begun[MODEST]) <= 2


async def test_a_late_tenant_does_not_catch_up(store: Store) -> None:
    await two_tenants(store)
    await store.add(tenant=MODEST)
    await add(store, GREEDY, 60)
    await starts(store, 30)
    # Thirty starts later it gets every second one, and not the thirty that it did not use.
    await add(store, MODEST, 30)
    begun = Counter(await starts(store, 20))
    assert abs(begun[GREEDY] - begun[MODEST]) <= 2


async def test_requests_one_by_one_get_no_more_than_a_batch(store: Store) -> None:
    await two_tenants(store)
    await add(store, GREEDY, 30)
    for _ in range(30):
        await store.add(tenant=MODEST)
    begun = Counter(await starts(store, 30))
    assert abs(begun[GREEDY] - begun[MODEST]) <= 2


async def test_weights_divide_the_starts(store: Store) -> None:
    await two_tenants(store)
    await set_tenant(store.database, MODEST, TenantChange(weight=3), actor="test")
    await add(store, GREEDY, 80)
    await add(store, MODEST, 80)
    begun = Counter(await starts(store, 80))
    assert abs(begun[MODEST] - 60) <= 2


async def test_tenants_with_limits_share_too(store: Store) -> None:
    await two_tenants(store, max_running=50)
    await add(store, GREEDY, 300)
    await starts(store, 20)
    await add(store, MODEST, 10)
    begun = await starts(store, 22)
    assert begun.count(MODEST) == 10


async def test_a_tenant_with_limits_and_one_without_share(store: Store) -> None:
    await two_tenants(store)
    await set_tenant(store.database, MODEST, TenantChange(max_running=50), actor="test")
    await add(store, GREEDY, 300)
    await starts(store, 20)
    await add(store, MODEST, 10)
    assert (await starts(store, 22)).count(MODEST) == 10
    await add(store, MODEST, 100)
    begun = Counter(await starts(store, 60))
    assert abs(begun[GREEDY] - begun[MODEST]) <= 2


async def test_a_refused_run_uses_no_share(store: Store) -> None:
    await two_tenants(store, max_queued=5)
    await add(store, GREEDY, 5)
    before = await store.sql("select finish_tag from lane_shares where tenant = :t", t=GREEDY)
    await store.accept(new_run(tenant=GREEDY))
    assert await store.sql("select finish_tag from lane_shares where tenant = :t", t=GREEDY) == before


async def test_priorities_keep_their_meaning_inside_a_tenant(store: Store) -> None:
    await two_tenants(store)
    (low,) = await add(store, GREEDY, 1, priority=-5)
    plain = await add(store, GREEDY, 20)
    (high,) = await add(store, GREEDY, 1, priority=5)
    (raised,) = await add(store, GREEDY, 1)
    await set_priority(store.database, raised, 50)
    order = [claimed.run_id for claimed in await store.claim(await store.worker(), 30)]
    assert order == [raised, high, *plain, low]


async def test_a_lane_bounds_what_a_point_of_priority_delays(store: Store) -> None:
    await two_tenants(store)
    await set_lane(store.database, "default", LaneChange(priority_seconds=0))
    await add(store, GREEDY, 100, priority=100)
    await add(store, MODEST, 5)
    assert (await starts(store, 11)).count(MODEST) == 5


async def test_a_lane_without_fair_shares_keeps_the_time_of_acceptance(store: Store) -> None:
    await two_tenants(store)
    await set_lane(store.database, "default", LaneChange(fair=False))
    ids = [*await add(store, GREEDY, 20), *await add(store, MODEST, 5)]
    assert {tag for _, tag in await tags(store, ids)} == {None}
    assert await starts(store, 25) == [GREEDY] * 20 + [MODEST] * 5


async def test_a_requeued_run_keeps_its_place(store: Store) -> None:
    await two_tenants(store)
    ids = [*await add(store, GREEDY, 30), *await add(store, MODEST, 30)]
    before = await tags(store, ids)
    worker = await store.worker()
    lost = await store.claim(worker, 10)
    failed = await store.claim(await store.worker(), 10)
    for claimed in failed:
        await store.finish(claimed, failed_once(delay_us=1))
    await store.expire(worker)
    await Reaper(store.settings, store.database, MemoryBus()).run_once()
    await store.make_due()
    assert await tags(store, ids) == before
    again = await store.claim(await store.worker(), 20)
    assert {claimed.run_id for claimed in again} == {claimed.run_id for claimed in (*lost, *failed)}


async def test_delayed_runs_get_their_tag_when_they_are_due(store: Store) -> None:
    await two_tenants(store)
    await add(store, GREEDY, 200, delay_us=3_600_000_000)
    await add(store, MODEST, 20)
    await store.make_due()
    begun = await starts(store, 40)
    assert abs(begun.count(GREEDY) - begun.count(MODEST)) <= 2


async def test_approved_and_retried_runs_get_a_tag_of_now(store: Store) -> None:
    await two_tenants(store)
    held = await add(store, GREEDY, 10, hold=True)
    failed = await add(store, GREEDY, 10)
    for claimed in await store.claim(await store.worker(), 10):
        await store.finish(claimed, dead())
    await add(store, MODEST, 30)
    for run_id in held:
        await approve_run(store.database, run_id)
    for run_id in failed:
        await retry_run(store.database, run_id)
    begun = await starts(store, 20)
    assert abs(begun.count(GREEDY) - begun.count(MODEST)) <= 2


async def test_moved_runs_keep_their_rank_and_mix_with_the_other_lane(store: Store) -> None:
    await two_tenants(store)
    await declare_lanes(store.database, ["other"])
    moved = await add(store, GREEDY, 20, target="moving")
    before = await tags(store, moved)
    await add(store, MODEST, 20, lane="other")
    await move_kinds(store.database, ["moving"], "other")
    assert await tags(store, moved) == before
    worker, memory = await store.worker(), LaneMemory()
    claims = await store.claim(worker, 40, targets=("job", "moving"), memory=memory)
    assert len(claims) == 40


async def test_fairness_keys_divide_the_share_of_a_single_tenant(store: Store) -> None:
    await add(store, DEFAULT_TENANT, 300, fairness_key="import")
    ids = await add(store, DEFAULT_TENANT, 10, fairness_key="customer-7")
    order: list[str] = []
    worker, memory = await store.worker(), LaneMemory()
    while len(order) < 31:
        order += [claimed.run_id for claimed in await store.claim(worker, 1, memory=memory)]
    assert set(ids) <= set(order)


async def test_keys_do_not_multiply_the_share_of_a_tenant(store: Store) -> None:
    await two_tenants(store)
    keys = [f"key-{number}" for number in range(8)]
    for _ in range(40):
        await store.add_all(*(new_run(tenant=GREEDY, fairness_key=key) for key in keys))
    await add(store, MODEST, 60)
    begun = Counter(await starts(store, 60))
    assert begun[MODEST] >= 24


async def test_a_process_learns_who_shares_lanes(store: Store) -> None:
    committer = Committer(store.database, lambda lanes: None)
    await committer.start()
    try:
        await committer.accept([new_run()], 30)
        assert await store.count("lane_shares") == 0
        await create_tenant(store.database, MODEST, actor="test")
        for _ in range(2):
            await committer.accept([new_run(), new_run(tenant=MODEST)], 30)
        assert await store.count("lane_shares") == 2
        rows = await store.sql("select count(*) as n from runs where start_tag is not null")
        assert rows[0]["n"] == 4
        await store.sql("delete from runs")
        await delete_tenant(store.database, MODEST, actor="test")
        before = await store.sql("select finish_tag from lane_shares")
        await committer.accept([new_run()], 30)
        await committer.accept([new_run()], 30)
        assert await store.sql("select finish_tag from lane_shares") == before
        assert await accept_alone(store.database, [new_run()]) is not None
    finally:
        await committer.stop()


@pytest.fixture
async def committer(store: Store) -> AsyncGenerator[Committer]:
    """A committer that has met the tenants, so that it places their runs in one round trip where it can."""
    await two_tenants(store)
    committer = Committer(store.database, lambda lanes: None)
    await committer.start()
    for tenant in (GREEDY, MODEST):
        await committer.accept([new_run(tenant=tenant)], 30)
    await store.sql("delete from runs")
    await store.sql("delete from lane_shares")
    try:
        yield committer
    finally:
        await committer.stop()


async def test_single_requests_get_the_shares_of_batches(store: Store, committer: Committer) -> None:
    queued = [new_run(tenant=GREEDY) for _ in range(60)]
    await committer.accept(queued, 30)
    for _ in range(30):
        await committer.accept([new_run(tenant=MODEST)], 30)
    greedy = await tags(store, [run.id for run in queued])
    assert greedy == sorted(set(greedy))
    assert all(rank == tag for rank, tag in greedy)
    begun = Counter(await starts(store, 40))
    assert abs(begun[GREEDY] - begun[MODEST]) <= 2


async def test_a_mixed_request_is_placed_by_tenant_and_lane(store: Store, committer: Committer) -> None:
    await set_lane(store.database, "unfair", LaneChange(fair=False), create=True, actor="test")
    await declare_lanes(store.database, ["other"])
    await move_kinds(store.database, ["moved"], "other", actor="test")
    fair = [new_run(tenant=tenant) for _ in range(5) for tenant in (GREEDY, MODEST)]
    unfair = new_run(tenant=GREEDY, lane="unfair", target="elsewhere")
    moved = new_run(tenant=MODEST, target="moved")
    await committer.accept([*fair, unfair, moved], 30)
    for tenant in (GREEDY, MODEST):
        placed = await tags(store, [run.id for run in fair if run.tenant == tenant])
        assert placed == sorted(set(placed))
        assert None not in [tag for _, tag in placed]
    rows = {row["id"]: row for row in await store.sql("select id, lane, rank, accepted_at, start_tag from runs")}
    assert (rows[unfair.id]["start_tag"], rows[unfair.id]["rank"]) == (None, rows[unfair.id]["accepted_at"])
    assert (rows[moved.id]["lane"], rows[moved.id]["start_tag"] is None) == ("other", False)
    shares = await store.sql("select lane, tenant from lane_shares order by lane, tenant")
    assert [(row["lane"], row["tenant"]) for row in shares] == [
        ("default", GREEDY),
        ("default", MODEST),
        ("other", MODEST),
    ]


async def test_a_shared_lane_without_fair_shares_needs_no_transaction_for_an_accept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two_tenants(store)
    await set_lane(store.database, "default", LaneChange(fair=False))
    committer = Committer(store.database, lambda lanes: None)
    await committer.start()
    transact = store.database.transact
    transactions = 0

    async def counted(*arguments: Any) -> Any:
        nonlocal transactions
        transactions += 1
        return await transact(*arguments)

    try:
        # The first accepts find out that the tenant shares lanes, and read the clocks.
        for _ in range(2):
            await committer.accept([new_run(tenant=GREEDY)], 30)
        monkeypatch.setattr(store.database, "transact", counted)
        accepted = [await committer.accept([new_run(tenant=GREEDY)], 30) for _ in range(3)]
    finally:
        monkeypatch.undo()
        await committer.stop()
    assert len(accepted) == 3
    # The statement is for Postgres; with SQLite there are no round trips.
    assert transactions == 0 or store.database.dialect == "sqlite"
    rows = await store.sql("select start_tag from runs")
    assert [row["start_tag"] for row in rows] == [None] * 5


async def test_a_tenant_that_gets_limits_is_not_stored_past_them(store: Store, committer: Committer) -> None:
    await set_tenant(store.database, MODEST, TenantChange(max_queued=1), actor="test")
    (first,) = await committer.accept([new_run(tenant=MODEST)], 30)
    (second,) = await committer.accept([new_run(tenant=MODEST)], 30)
    assert isinstance(first, Accepted)
    assert isinstance(second, Exception)
    assert await store.count("runs") == 1


async def test_an_accept_does_not_wait_for_that_of_another_tenant(store: Store) -> None:
    await two_tenants(store)

    async def work(session: Session) -> None:
        await accept(session, [new_run(tenant=GREEDY)])
        if session.dialect == "postgresql":
            # SQLite has one writer at a time, whatever it writes.
            async with asyncio.timeout(30):
                await store.add(tenant=MODEST)

    await store.database.transact(work)


async def test_a_point_of_priority_is_worth_what_passes_in_its_time(store: Store) -> None:
    await two_tenants(store)
    await add(store, GREEDY, 5)
    (clock,) = await store.sql("select * from lane_clocks")
    assert (clock["read_at"], clock["virtual"]) == (clock["earlier_at"], clock["earlier_virtual"])
    # A minute ago the virtual time was 60 ms earlier: one second lasts a thousand.
    await store.sql(
        "update lane_clocks set earlier_at = earlier_at - 60000000, earlier_virtual = earlier_virtual - 60000"
    )
    (urgent,) = await add(store, GREEDY, 1, priority=2)
    ((rank, tag),) = await tags(store, [urgent])
    assert tag is not None
    assert 2 * 500_000 < tag - rank < 2 * 700_000
    # The clock is read again when the reading is a minute old.
    assert (await store.sql("select read_at from lane_clocks"))[0]["read_at"] == clock["read_at"]
    await store.sql("update lane_clocks set read_at = read_at - 60000000")
    await add(store, GREEDY, 1)
    (later,) = await store.sql("select * from lane_clocks")
    assert later["read_at"] >= clock["read_at"] > later["earlier_at"]


async def test_accepts_with_the_same_tenants_do_not_deadlock(store: Store) -> None:
    await two_tenants(store)

    async def accept_some(tenants: Sequence[str]) -> None:
        for _ in range(15):
            await store.add_all(*(new_run(tenant=tenant) for tenant in tenants))

    async with asyncio.timeout(120):
        await asyncio.gather(
            accept_some([GREEDY, MODEST]), accept_some([MODEST, GREEDY]), accept_some([GREEDY]), accept_some([MODEST])
        )
    rows = await store.sql("select tenant, start_tag from runs")
    assert len(rows) == 90
    # No two runs of a tenant have the same tag, however they were accepted.
    assert len({(row["tenant"], row["start_tag"]) for row in rows}) == 90


async def test_due_runs_without_a_shared_lane_are_queued_as_before(store: Store) -> None:
    run_id = await store.add(delay_us=3_600_000_000)
    (before,) = await tags(store, [run_id])
    await store.sql("update runs set due_at = 1")
    assert await store.database.transact(queue_due) == ["default"]
    assert await store.status(run_id) is Status.QUEUED
    assert await tags(store, [run_id]) == [before]
