"""Runs that other runs have started: they are cancelled with their parent, and wake a parent that waits."""

from __future__ import annotations

import asyncio

import pytest

from runlane.bus.memory import MemoryBus
from runlane.domain.run import Status
from runlane.errors import IdempotencyConflict
from runlane.maintenance.child_canceller import ChildCanceller
from runlane.maintenance.reaper import Reaper
from runlane.store.orchestration.children import announce_child, child_is_seen, read_children, wake_parents
from runlane.store.orchestration.waits import NewWait
from runlane.store.queue.claim import Claimed
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.revival import retry_run
from runlane.store.queue.run_changes import cancel_run
from tests.contract.test_timers_retention import age, retention_of
from tests.harness import Store, completed, dead, entry_of, new_run

PAUSED = Finish(AttemptOutcome.PAUSED, Status.PAUSED, delay_us=60_000_000)


async def running(store: Store) -> Claimed:
    await store.add()
    return await store.claim_one()


async def announce(store: Store, parent: Claimed, key: str = "child") -> bool:
    return await announce_child(store.database, parent.run_id, parent.attempt, key, f"{parent.run_id}/{key}")


async def child_of(store: Store, parent: Claimed, key: str = "child") -> str:
    assert await announce(store, parent, key)
    return await store.add(idempotency_key=key, fingerprint="f")


async def pause(store: Store, parent: Claimed) -> None:
    await store.record(entry_of(parent, PAUSED, waits=[NewWait("s!later", "time", "s", "later", "{}", 60_000_000)]))


async def rounds(store: Store) -> None:
    duty = ChildCanceller(store.database, MemoryBus())
    while await duty.run_once():
        pass


async def marked(store: Store) -> int:
    return len(await store.sql("select key from run_children where cancel_at is not null"))


async def test_a_cancelled_parent_takes_its_children_along_and_they_theirs(store: Store) -> None:
    parent = await running(store)
    child_id = await child_of(store, parent)
    child = await store.claim_one()
    assert child.run_id == child_id
    grandchild = await child_of(store, child, "grandchild")
    other = await store.add(idempotency_key="other", fingerprint="f")
    await pause(store, parent)
    await cancel_run(store.database, parent.run_id)
    # The process that cancelled dies here, and the maintenance service of another process continues.
    await rounds(store)
    assert (await store.get(child_id)).cancel_requested_at_us is not None
    assert await store.status(grandchild) is Status.QUEUED, "its parent has not ended yet"
    await store.finish(child, Finish(AttemptOutcome.CANCELLED, Status.CANCELLED))
    await rounds(store)
    assert await store.status(grandchild) is Status.CANCELLED
    assert await store.status(other) is Status.QUEUED
    assert await marked(store) == 0
    for run_id in (parent.run_id, child_id, grandchild):
        await store.check_stream(run_id)


async def test_nothing_happens_to_a_child_before_its_parent_has_ended_as_cancelled(store: Store) -> None:
    parent = await running(store)
    child_id = await child_of(store, parent)
    await cancel_run(store.database, parent.run_id)
    await rounds(store)
    assert await store.status(child_id) is Status.QUEUED
    await store.finish(parent, Finish(AttemptOutcome.CANCELLED, Status.CANCELLED))
    await rounds(store)
    assert await store.status(child_id) is Status.CANCELLED


@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_a_parent_that_was_cancelled_too_late_leaves_its_child_alone(end: str, store: Store) -> None:
    parent = await running(store)
    child_id = await child_of(store, parent)
    await cancel_run(store.database, parent.run_id)
    await store.finish(parent, completed() if end == "completed" else dead())
    await rounds(store)
    assert await store.status(child_id) is Status.QUEUED
    assert await marked(store) == 0
    if end == "failed":
        await retry_run(store.database, parent.run_id)
        await cancel_run(store.database, parent.run_id)
        await rounds(store)
        assert await store.status(child_id) is Status.CANCELLED, "this time it came in time"


async def test_a_failed_parent_finds_its_child_again(store: Store) -> None:
    parent = await running(store)
    child_id = await child_of(store, parent)
    await store.finish(parent, dead())
    await rounds(store)
    await retry_run(store.database, parent.run_id)
    claims = {claimed.run_id: claimed for claimed in await store.claim(await store.worker())}
    assert set(claims) == {parent.run_id, child_id}
    assert await announce(store, claims[parent.run_id])
    assert (await store.add_all(new_run(idempotency_key="child", fingerprint="f")))[0].run_id == child_id


async def test_a_cancelled_run_and_a_lost_attempt_start_nothing(store: Store) -> None:
    parent = await running(store)
    await cancel_run(store.database, parent.run_id)
    assert not await announce(store, parent)
    lost = await running(store)
    await store.sql("update runs set attempt = attempt + 1 where id = :id", id=lost.run_id)
    assert not await announce(store, lost)
    assert await store.count("run_children") == 0


async def test_a_cancel_and_an_announcement_at_the_same_moment_see_each_other(store: Store) -> None:
    announced = 0
    for number in range(60):
        parent = await running(store)
        first, second = announce(store, parent, f"child{number}"), cancel_run(store.database, parent.run_id)
        started, _ = await asyncio.gather(first, second)
        rows = await store.sql("select cancel_at from run_children where run_id = :id", id=parent.run_id)
        assert [row["cancel_at"] is not None for row in rows] == [True] * started
        announced += started
        await store.finish(parent, Finish(AttemptOutcome.CANCELLED, Status.CANCELLED))
    assert announced, "no cancel came after an announcement"


async def test_a_child_that_is_started_after_its_parent_was_cancelled_is_refused(store: Store) -> None:
    """The parent's worker froze between the announcement and the start."""
    parent = await running(store)
    assert await announce(store, parent)
    await store.finish(parent, PAUSED)
    await cancel_run(store.database, parent.run_id)
    await rounds(store)
    assert await marked(store) == 0
    (verdict,) = await store.accept(new_run(idempotency_key="child", fingerprint="f"))
    assert isinstance(verdict, IdempotencyConflict)
    assert await read_children(store.database, parent.run_id) == []
    assert await store.count("runs") == 1


async def test_an_ended_child_is_left_as_it_is(store: Store) -> None:
    parent = await running(store)
    child_id = await child_of(store, parent)
    await store.finish(await store.claim_one())
    await cancel_run(store.database, parent.run_id)
    await store.finish(parent, Finish(AttemptOutcome.CANCELLED, Status.CANCELLED))
    await rounds(store)
    assert await store.status(child_id) is Status.COMPLETED
    assert await marked(store) == 0


async def test_more_children_than_one_round_takes(store: Store) -> None:
    parent = await running(store)
    ids = [await child_of(store, parent, f"child{number}") for number in range(450)]
    await store.finish(parent, PAUSED)
    await cancel_run(store.database, parent.run_id)
    await rounds(store)
    assert {await store.status(run_id) for run_id in ids} == {Status.CANCELLED}
    assert len(await read_children(store.database, parent.run_id)) == 100


async def test_a_parent_that_waits_is_woken_by_the_end_of_its_child(store: Store) -> None:
    parent = await running(store)
    child_id = await child_of(store, parent)
    await pause(store, parent)
    assert await wake_parents(store.database, [await store.add()]) == [], "not its child"
    child = await store.claim_one()
    await store.finish(child)
    assert await wake_parents(store.database, [child_id]) == ["default"]
    run = await store.get(parent.run_id)
    assert (run.status, run.due_at_us) == (Status.QUEUED, None)
    assert await wake_parents(store.database, [child_id]) == []


async def test_a_parent_that_waits_is_woken_when_its_child_has_lost_too_many_workers(store: Store) -> None:
    parent = await running(store)
    assert await announce(store, parent)
    child_id = await store.add(idempotency_key="child", fingerprint="f", max_losses=0)
    await pause(store, parent)
    worker_id = await store.worker()
    await store.claim(worker_id, 1)
    await store.sql("update workers set lease_until = 1 where id = :id", id=worker_id)
    bus = MemoryBus()
    listener = bus.listen(frozenset({"default"}))
    await Reaper(store.settings, store.database, bus).run_once()
    assert await store.status(child_id) is Status.FAILED
    assert await store.status(parent.run_id) is Status.QUEUED
    assert await listener.wait({"default"}, 0.001), "workers are called at once"


async def test_a_parent_that_pauses_when_its_child_ends_is_ready_at_once(store: Store) -> None:
    """The child ended between its parent's last look and the pause, so no process found a paused run to wake."""
    parent = await running(store)
    child_id = await child_of(store, parent)
    await store.finish(await store.claim_one())
    assert await wake_parents(store.database, [child_id]) == []
    await pause(store, parent)
    assert await store.status(parent.run_id) is Status.QUEUED
    again = await store.claim_one()
    await pause(store, again)
    assert await store.status(parent.run_id) is Status.PAUSED, "once is enough: its result may not be needed any more"


async def test_a_parent_that_has_seen_the_end_may_pause_for_something_else(store: Store) -> None:
    parent = await running(store)
    child_id = await child_of(store, parent)
    await store.finish(await store.claim_one())
    await child_is_seen(store.database, "child")
    await pause(store, parent)
    assert await store.status(parent.run_id) is Status.PAUSED
    assert await wake_parents(store.database, [child_id]) == []


async def test_children_are_listed_in_order_and_deleted_with_their_parent(store: Store) -> None:
    parent = await running(store)
    first, second = await child_of(store, parent, "b"), await child_of(store, parent, "a")
    children = await read_children(store.database, parent.run_id)
    assert [(child.run_id, child.status, child.path) for child in children] == [
        (first, Status.QUEUED, f"{parent.run_id}/b"),
        (second, Status.QUEUED, f"{parent.run_id}/a"),
    ]
    await store.finish(parent)
    await age(store, parent.run_id, 2)
    await retention_of(store).run_once()
    assert await store.count("run_children") == 0
    assert await store.status(first) is Status.QUEUED
