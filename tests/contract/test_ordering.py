"""Ordering keys: one at a time, in the order of acceptance, whatever happens to the one in front."""

from __future__ import annotations

import asyncio
import time

import pytest

from runlane import WrongState
from runlane.domain.run import Status
from runlane.store.queue.committer import Committer
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.revival import retry_run
from runlane.store.queue.run_changes import approve_run, cancel_run, release_run
from runlane.store.queue.timers import queue_due
from tests.harness import Store, completed, dead, entry_of, failed_once, new_run


async def holders(store: Store) -> int:
    return (await store.sql("select count(*) as n from runs where holds_key"))[0]["n"]


async def queue_of(store: Store, count: int, **fields: object) -> list[str]:
    requests = [new_run(ordering_key="k", **fields) for _ in range(count)]
    await store.add_all(*requests)
    return [request.id for request in requests]


async def test_the_first_is_queued_and_the_rest_is_blocked(store: Store) -> None:
    batch = await queue_of(store, 3)
    later = await store.add(ordering_key="k")
    assert [await store.status(run_id) for run_id in [*batch, later]] == [Status.QUEUED, *[Status.BLOCKED] * 3]
    assert await store.status(await store.add(ordering_key="other")) is Status.QUEUED
    assert await holders(store) == 2


@pytest.mark.parametrize(
    "end",
    [completed(), dead(), Finish(AttemptOutcome.CANCELLED, Status.CANCELLED)],
    ids=["completed", "failed", "cancelled"],
)
async def test_the_end_of_a_run_releases_the_next(store: Store, end: Finish) -> None:
    ids = await queue_of(store, 4)
    worker = await store.worker()
    for position, run_id in enumerate(ids):
        claims = await store.claim(worker)
        assert [claimed.run_id for claimed in claims] == [run_id]
        assert await store.claim(worker) == []
        recorded = await store.finish(claims[0], end)
        assert recorded is not None
        assert recorded.status.terminal
        assert await holders(store) == (1 if position < 3 else 0)
    for run_id in ids:
        await store.check_stream(run_id)
    assert await store.event_types(ids[1]) == ["queued", "key_free", "worker_picked_up", "done"]


async def test_a_thousand_waiting_runs_go_in_their_order(store: Store) -> None:
    ids = await queue_of(store, 1_000)
    worker = await store.worker()
    for run_id in ids[:20]:
        (claimed,) = await store.claim(worker, 50)
        assert claimed.run_id == run_id
        await store.finish(claimed)
    assert [await store.status(run_id) for run_id in ids[19:22]] == [Status.COMPLETED, Status.QUEUED, Status.BLOCKED]


async def test_priority_does_not_overtake_within_a_key(store: Store) -> None:
    first = await store.add(ordering_key="k", priority=-100)
    await store.add(ordering_key="k", priority=100)
    assert [claimed.run_id for claimed in await store.claim(await store.worker())] == [first]


async def test_a_run_that_waits_to_be_tried_again_keeps_its_key(store: Store) -> None:
    first, second = await queue_of(store, 2)
    claimed = await store.claim_one()
    await store.finish(claimed, failed_once())
    assert (await store.status(first), await store.status(second)) == (Status.SCHEDULED, Status.BLOCKED)
    assert await store.claim(await store.worker()) == []


@pytest.mark.parametrize("fields", [{"delay_us": 60_000_000}, {"hold": True}], ids=["scheduled", "held"])
async def test_a_head_that_is_not_ready_blocks(store: Store, fields: dict[str, object]) -> None:
    await store.add(ordering_key="k", **fields)
    second = await store.add(ordering_key="k")
    assert await store.status(second) is Status.BLOCKED
    assert await store.claim(await store.worker()) == []


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"delay_us": 600_000_000}, Status.SCHEDULED),
        ({"hold": True}, Status.AWAITING_APPROVAL),
        ({"hold": True, "delay_us": 600_000_000}, Status.AWAITING_APPROVAL),
        ({"delay_us": 1}, Status.QUEUED),
    ],
)
async def test_a_released_run_still_has_its_own_hold_and_due_time(
    store: Store, fields: dict[str, object], status: Status
) -> None:
    await store.add(ordering_key="k")
    second = await store.add(ordering_key="k", **fields)
    assert await store.status(second) is Status.BLOCKED
    await store.finish(await store.claim_one())
    assert await store.status(second) is status


async def test_a_hold_may_be_lifted_while_the_run_is_blocked(store: Store) -> None:
    await store.add(ordering_key="k")
    second = await store.add(ordering_key="k", hold=True)
    change = await approve_run(store.database, second)
    assert change.status is Status.BLOCKED
    await store.finish(await store.claim_one())
    assert await store.status(second) is Status.QUEUED
    with pytest.raises(WrongState):
        await approve_run(store.database, second)


@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_cancelling_any_of_them_keeps_the_rest_going(store: Store, victim: int) -> None:
    ids = await queue_of(store, 3)
    change = await cancel_run(store.database, ids[victim])
    assert change.status is Status.CANCELLED
    assert change.ready_lanes == (("default",) if victim == 0 else ())
    worker = await store.worker()
    for run_id in (run_id for run_id in ids if run_id != ids[victim]):
        (claimed,) = await store.claim(worker)
        assert claimed.run_id == run_id
        await store.finish(claimed)
    assert await store.claim(worker) == []


async def test_a_dead_run_that_blocks_stops_its_key_until_it_is_released(store: Store) -> None:
    first, second, third = await queue_of(store, 3, on_dead="block")
    await store.finish(await store.claim_one(), dead())
    assert (await store.status(first), await store.status(second)) == (Status.FAILED, Status.BLOCKED)
    assert await store.claim(await store.worker()) == []
    assert await store.status(await store.add(ordering_key="k")) is Status.BLOCKED
    change = await release_run(store.database, first)
    assert change.ready_lanes == ("default",)
    assert (await store.status(second), await store.status(third)) == (Status.QUEUED, Status.BLOCKED)
    with pytest.raises(WrongState, match="is failed"):
        await release_run(store.database, first)


async def test_a_dead_run_that_blocks_may_be_retried_in_its_place(store: Store) -> None:
    first, second = await queue_of(store, 2, on_dead="block")
    await store.finish(await store.claim_one(), dead())
    assert (await retry_run(store.database, first)).status is Status.QUEUED
    claimed = await store.claim_one()
    assert (claimed.run_id, claimed.attempt) == (first, 2)
    await store.finish(claimed)
    assert await store.status(second) is Status.QUEUED


async def test_a_retried_run_goes_behind_those_that_wait(store: Store) -> None:
    first, second, third = await queue_of(store, 3)
    worker = await store.worker()
    await store.finish(await store.claim_one(worker), dead())
    assert (await retry_run(store.database, first)).status is Status.BLOCKED
    order: list[str] = []
    while claims := await store.claim(worker):
        order += [claimed.run_id for claimed in claims]
        for claimed in claims:
            await store.finish(claimed)
    assert order == [second, third, first]


async def test_a_retried_run_takes_a_free_key_at_once(store: Store) -> None:
    first = await store.add(ordering_key="k")
    await store.finish(await store.claim_one(), dead())
    assert (await retry_run(store.database, first)).status is Status.QUEUED
    assert await store.status(await store.add(ordering_key="k")) is Status.BLOCKED


async def test_a_due_head_is_queued_by_the_timer(store: Store) -> None:
    first = await store.add(ordering_key="k", delay_us=1)
    assert await store.database.transact(queue_due) == ["default"]
    assert await store.status(first) is Status.QUEUED


async def test_an_accept_and_a_finish_in_one_batch_meet(store: Store) -> None:
    """A run accepted behind a key that the same transaction frees is not left behind."""
    await store.add(ordering_key="k")
    claimed = await store.claim_one()
    rung: list[set[str]] = []
    committer = Committer(store.database, rung.append)
    await committer.start()
    try:
        second = new_run(ordering_key="k")
        ended = asyncio.ensure_future(committer.record(entry_of(claimed, completed()), time.monotonic() + 60))
        await asyncio.gather(ended, committer.accept([second], 60))
    finally:
        await committer.stop()
    assert (committer.commits, committer.members) == (1, 2)
    assert await store.status(second.id) is Status.QUEUED
    assert rung == [{"default"}]
