"""Runs that start after other runs: when they become ready, when they never will, and what they wait for besides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane import RunNotFound, WrongState
from runlane.bus.memory import MemoryBus
from runlane.domain.ids import new_id
from runlane.domain.run import Accepted, RunHook, Status
from runlane.maintenance.dependents import DependentSettler
from runlane.store.access.tenants import create_tenant
from runlane.store.queue.committer import Committer
from runlane.store.queue.dependencies import check_parents
from runlane.store.queue.dependency_rows import CANCELLED_AT_ONCE, SETTLED_AT_ONCE
from runlane.store.queue.reaping import take_over
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.retention import delete_old
from runlane.store.queue.revival import retry_run
from runlane.store.queue.run_changes import approve_run, cancel_run
from tests.harness import Store, completed, dead, entry_of, failed_once, new_run
from tests.scale import scaled

CANCELLED = Finish(AttemptOutcome.CANCELLED, Status.CANCELLED)


async def started(store: Store, count: int) -> list[Any]:
    """Accept and claim this many runs, in the order of their acceptance."""
    await store.add_all(*(new_run() for _ in range(count)))
    return sorted(await store.claim(await store.worker(), count), key=lambda claimed: claimed.run_id)


async def settle_all(store: Store) -> None:
    settler = DependentSettler(store.database, MemoryBus())
    while await settler.run_once():
        pass


@pytest.mark.parametrize(
    ("on", "ends", "status"),
    [
        ("success", [completed()], Status.QUEUED),
        ("success", [dead()], Status.CANCELLED),
        ("success", [CANCELLED], Status.CANCELLED),
        ("success", [completed(), completed()], Status.QUEUED),
        ("success", [completed(), dead()], Status.CANCELLED),
        ("success", [completed(), None], Status.BLOCKED),
        ("success", [dead(), None], Status.CANCELLED),
        ("success", [failed_once()], Status.BLOCKED),
        ("end", [dead(), CANCELLED, completed()], Status.QUEUED),
        ("end", [dead(), None], Status.BLOCKED),
        ("any_failed", [dead(), None], Status.QUEUED),
        ("any_failed", [completed(), None], Status.BLOCKED),
        ("any_failed", [completed(), CANCELLED], Status.CANCELLED),
        ("any_failed", [completed(), dead()], Status.QUEUED),
    ],
)
@pytest.mark.parametrize("late", [False, True], ids=["accepted before", "accepted after"])
async def test_the_ends_of_the_parents_decide(
    store: Store, on: str, ends: list[Finish | None], status: Status, late: bool
) -> None:
    parents = await started(store, len(ends))
    ids = tuple(claimed.run_id for claimed in parents)
    run = new_run(after=ids, after_on=on)
    if not late:
        await store.add_all(run)
        assert await store.status(run.id) is Status.BLOCKED
    for claimed, end in zip(parents, ends, strict=True):
        if end is not None:
            await store.finish(claimed, end)
    if late:
        (accepted,) = await store.add_all(run)
        assert accepted.status is status
    found = await store.get(run.id)
    assert found.status is status
    if status is Status.CANCELLED:
        assert found.error is not None
        assert found.error["type"] == "dependency_failed"
        assert found.ended_at_us is not None
    await store.check_stream(run.id)


async def test_the_reason_counts_the_runs_that_are_open(store: Store) -> None:
    first, second, third = await started(store, 3)
    run_id = await store.add(after=tuple(item.run_id for item in (first, second, third)))
    await store.finish(second)
    after = (await store.get(run_id)).after
    assert after is not None
    assert after["reason"] == "waits for 2 of 3 runs"
    assert after["open"] == 2
    assert after["runs"] == {first.run_id: None, second.run_id: Status.COMPLETED, third.run_id: None}
    await store.finish(first)
    await store.finish(third)
    after = (await store.get(run_id)).after
    assert after is not None
    assert (after["reason"], after["open"]) == (None, 0)
    assert await store.event_types(run_id) == ["queued", "dependencies_met"]
    assert (await store.get(first.run_id)).after is None


async def test_a_cancelled_parent_that_never_ran_counts(store: Store) -> None:
    parent = await store.add(hold=True)
    strict, relaxed = await store.add(after=(parent,)), await store.add(after=(parent,), after_on="end")
    change = await cancel_run(store.database, parent)
    assert await store.status(strict) is Status.CANCELLED
    assert await store.status(relaxed) is Status.QUEUED
    assert change.ready_lanes == ("default",)
    assert {notice.run_id for notice in change.notices} == {parent, strict, relaxed}


async def test_the_reaper_decides_too(store: Store) -> None:
    parent = await store.add(max_losses=0)
    worker = await store.worker()
    await store.claim(worker)
    strict = await store.add(after=(parent,))
    repair = await store.add(after=(parent,), after_on="any_failed")
    await store.database.transact(lambda session: take_over(session, [worker]))
    assert await store.status(parent) is Status.FAILED
    assert (await store.status(strict), await store.status(repair)) == (Status.CANCELLED, Status.QUEUED)


@pytest.mark.parametrize("on", ["success", "end", "any_failed"])
async def test_a_retry_of_a_parent_does_not_undo_the_decision(store: Store, on: str) -> None:
    (parent,) = await started(store, 1)
    run_id = await store.add(after=(parent.run_id,), after_on=on)
    await store.finish(parent, dead())
    decided = await store.status(run_id)
    await retry_run(store.database, parent.run_id)
    (again,) = [claimed for claimed in await store.claim(await store.worker()) if claimed.run_id == parent.run_id]
    # One that is accepted now waits for the next end of the retried run.
    later = await store.add(after=(parent.run_id,))
    assert await store.status(later) is Status.BLOCKED
    await store.finish(again)
    assert await store.status(later) is Status.QUEUED
    assert await store.status(run_id) in (decided, Status.RUNNING)


async def test_runs_of_other_tenants_and_unknown_ones_do_not_exist(store: Store) -> None:
    await create_tenant(store.database, "other", actor="test")
    theirs = await store.add(tenant="other")
    before = await store.contents()
    for parent in (theirs, new_id("run")):
        run = new_run(after=(parent,), idempotency_key="k", fingerprint="f")
        with pytest.raises(RunNotFound):
            await check_parents(store.database, [run])
        with pytest.raises(RunNotFound):
            await store.accept(run)
    assert await store.contents() == before


async def test_a_repeated_request_finds_its_run(store: Store) -> None:
    (parent,) = await started(store, 1)
    fields: dict[str, Any] = {"after": (parent.run_id,), "idempotency_key": "once", "fingerprint": "f"}
    first = await store.add(**fields)
    (again,) = await store.add_all(new_run(**fields))
    assert again == Accepted(first, Status.BLOCKED, "default", replayed=True)
    # The same run, stored by an earlier try whose result was lost.
    run = new_run(after=(parent.run_id,))
    await store.add_all(run)
    await store.add_all(run)
    await store.finish(parent)
    assert (await store.status(first), await store.status(run.id)) == (Status.QUEUED, Status.QUEUED)
    assert await store.count("run_dependencies") == 2


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"delay_us": 600_000_000}, Status.SCHEDULED),
        ({"hold": True}, Status.AWAITING_APPROVAL),
        ({"hold": True, "delay_us": 600_000_000}, Status.AWAITING_APPROVAL),
        ({"delay_us": 1}, Status.QUEUED),
    ],
)
async def test_hold_and_delay_apply_after_the_parents(store: Store, fields: dict[str, Any], status: Status) -> None:
    (parent,) = await started(store, 1)
    run_id = await store.add(after=(parent.run_id,), **fields)
    assert await store.status(run_id) is Status.BLOCKED
    await store.make_due()
    assert await store.status(run_id) is Status.BLOCKED
    await store.finish(parent)
    assert await store.status(run_id) is status


async def test_an_approval_while_it_is_blocked_counts(store: Store) -> None:
    (parent,) = await started(store, 1)
    run_id = await store.add(after=(parent.run_id,), hold=True)
    assert (await approve_run(store.database, run_id)).status is Status.BLOCKED
    with pytest.raises(WrongState):
        await approve_run(store.database, run_id)
    await store.finish(parent)
    assert await store.status(run_id) is Status.QUEUED


async def test_it_keeps_its_place_under_an_ordering_key(store: Store) -> None:
    (parent,) = await started(store, 1)
    head = await store.add(ordering_key="k", after=(parent.run_id,))
    behind = await store.add(ordering_key="k")
    assert (await store.status(head), await store.status(behind)) == (Status.BLOCKED, Status.BLOCKED)
    assert (await store.get(behind)).blocked_by == head
    assert await store.claim(await store.worker()) == []
    await store.finish(parent)
    assert (await store.status(head), await store.status(behind)) == (Status.QUEUED, Status.BLOCKED)
    await store.finish(await store.claim_one())
    assert await store.status(behind) is Status.QUEUED


@pytest.mark.parametrize("first", ["key", "runs"])
async def test_it_needs_both_its_key_and_its_parents(store: Store, first: str) -> None:
    await store.add(ordering_key="k")
    holder = await store.claim_one()
    (parent,) = await started(store, 1)
    run_id = await store.add(ordering_key="k", after=(parent.run_id,))
    behind = await store.add(ordering_key="k")
    await store.finish(holder if first == "key" else parent)
    assert await store.status(run_id) is Status.BLOCKED
    assert await store.status(behind) is Status.BLOCKED
    await store.finish(parent if first == "key" else holder)
    assert (await store.status(run_id), await store.status(behind)) == (Status.QUEUED, Status.BLOCKED)
    await store.check_stream(run_id)


@pytest.mark.parametrize("holds", [True, False])
async def test_one_that_can_never_start_passes_its_key_on(store: Store, holds: bool) -> None:
    front = None
    if not holds:
        await store.add(ordering_key="k")
        front = await store.claim_one()
    (parent,) = await started(store, 1)
    run_id = await store.add(ordering_key="k", after=(parent.run_id,))
    behind = await store.add(ordering_key="k")
    await store.finish(parent, dead())
    # The lock of the key could not be taken in that transaction.
    assert await store.status(run_id) is Status.BLOCKED
    await settle_all(store)
    assert await store.status(run_id) is Status.CANCELLED
    if front is not None:
        assert await store.status(behind) is Status.BLOCKED
        await store.finish(front)
    assert await store.status(behind) is Status.QUEUED
    assert await store.count("dependency_work") == 0


async def test_a_new_run_that_can_never_start_passes_its_key_on_at_once(store: Store) -> None:
    (parent,) = await started(store, 1)
    await store.finish(parent, dead())
    (accepted,) = await store.add_all(new_run(ordering_key="k", after=(parent.run_id,)))
    assert accepted.status is Status.CANCELLED
    assert await store.status(await store.add(ordering_key="k")) is Status.QUEUED


async def test_a_long_chain_ends_in_bounded_transactions(store: Store) -> None:
    length = scaled(3 * CANCELLED_AT_ONCE + 5, 10 * CANCELLED_AT_ONCE)
    (parent,) = await started(store, 1)
    chain = [parent.run_id]
    for _ in range(length):
        chain.append(await store.add(after=(chain[-1],)))
    middle = length // 2
    repair = await store.add(after=tuple(chain[middle : middle + 2]), after_on="end")
    await store.finish(parent, dead())
    rows = await store.sql("select count(*) as n from runs where status = 'cancelled'")
    assert rows[0]["n"] == CANCELLED_AT_ONCE
    passes = 0
    settler = DependentSettler(store.database, MemoryBus())
    while await settler.run_once():
        passes += 1
    assert passes >= length // (2 * CANCELLED_AT_ONCE)
    rows = await store.sql("select count(*) as n from runs where status = 'cancelled'")
    assert rows[0]["n"] == length
    assert await store.status(repair) is Status.QUEUED
    assert await store.count("dependency_work") == 0


async def test_a_chain_of_successes_is_executed_in_its_order(store: Store) -> None:
    chain = [await store.add()]
    for _ in range(20):
        chain.append(await store.add(after=(chain[-1],)))
    worker = await store.worker()
    for run_id in chain:
        (claimed,) = await store.claim(worker)
        assert claimed.run_id == run_id
        await store.finish(claimed)


async def test_more_dependents_than_one_transaction_settles(store: Store) -> None:
    (parent,) = await started(store, 1)
    count = SETTLED_AT_ONCE + 5
    await store.add_all(*(new_run(after=(parent.run_id,)) for _ in range(count)))
    await store.finish(parent)
    queued = "select count(*) as n from runs where status = 'queued'"
    assert (await store.sql(queued))[0]["n"] == SETTLED_AT_ONCE
    await settle_all(store)
    assert (await store.sql(queued))[0]["n"] == count
    assert await store.count("dependency_work") == 0


async def test_a_thousand_parents_that_end_at_once_decide_once(store: Store) -> None:
    parents = await started(store, 300)
    run_id = await store.add(after=tuple(claimed.run_id for claimed in parents))
    parts = [parents[start::6] for start in range(6)]
    await asyncio.gather(*(store.record(*(entry_of(item, completed()) for item in part)) for part in parts))
    assert await store.status(run_id) is Status.QUEUED
    assert (await store.event_types(run_id)).count("dependencies_met") == 1


async def test_an_accept_and_the_end_of_its_parent_do_not_miss_each_other(store: Store) -> None:
    committer = Committer(store.database, lambda lanes: None)
    await committer.start()
    try:
        parents = await started(store, 40)
        children = [new_run(after=(claimed.run_id,)) for claimed in parents]

        async def end(claimed: Any) -> None:
            await store.finish(claimed)

        async def add(run: Any) -> None:
            await committer.accept([run], 30)

        await asyncio.gather(
            *(work for claimed, run in zip(parents, children, strict=True) for work in (add(run), end(claimed)))
        )
    finally:
        await committer.stop()
    assert {await store.status(run.id) for run in children} == {Status.QUEUED}


async def test_records_and_accepts_of_one_batch_do_not_deadlock(store: Store) -> None:
    committers = [Committer(store.database, lambda lanes: None) for _ in range(3)]
    for committer in committers:
        await committer.start()
    try:
        running = await started(store, 30)
        ids = tuple(claimed.run_id for claimed in running)
        work: list[Any] = []
        for number, claimed in enumerate(running):
            committer = committers[number % 3]
            work.append(committers[(number + 1) % 3].accept([new_run(after=ids[number % 5 : number % 5 + 20])], 30))
            work.append(committer.record(entry_of(claimed, completed()), 1e12))
        await asyncio.gather(*work)
    finally:
        for committer in committers:
            await committer.stop()
    blocked = await store.sql("select count(*) as n from runs where status = 'blocked'")
    assert blocked[0]["n"] == 0


async def test_only_named_runs_have_the_hook(store: Store) -> None:
    parents = await started(store, 2)
    await store.add(after=(parents[0].run_id,))
    hooks = {row["id"]: row["hooks"] for row in await store.sql("select id, hooks from runs")}
    assert hooks[parents[0].run_id] == RunHook.DEPENDENTS
    assert hooks[parents[1].run_id] == 0


async def test_retention_deletes_the_rows_of_the_dependent(store: Store) -> None:
    (parent,) = await started(store, 1)
    await store.add(after=(parent.run_id,))
    await store.finish(parent, dead())
    await store.sql("update runs set ended_at = 1")
    await store.database.transact(lambda session: delete_old(session, 1))
    assert await store.count("run_dependencies") == 0
