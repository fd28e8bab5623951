"""Two transactions in an order that a storm rarely hits: one is held open while the other runs.

SQLite has one writer at a time, so the two cannot meet there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runlane.domain.rate_limit import LimitChange, LimitRefusal
from runlane.domain.run import Status
from runlane.store.queue.accept import accept
from runlane.store.queue.claim import Claimed, LaneMemory, claim
from runlane.store.queue.committer import Committer
from runlane.store.queue.lanes import LaneChange, set_lane
from runlane.store.queue.ordering import key_locks
from runlane.store.queue.reaping import declare_lost, take_over
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.queue.run_changes import cancel_run
from runlane.store.rate_limits.limits import set_limits
from runlane.store.rate_limits.slots import SlotGrant, SlotRequest, take_slots
from runlane.store.sql.database import Session
from tests.harness import Store, completed, entry_of, eventually, new_run

on_postgres = pytest.mark.parametrize("settings", ["postgres", "postgres-pgbouncer"], indirect=True)


@asynccontextmanager
async def held_open(store: Store, work: Callable[[Session], Awaitable[Any]]) -> AsyncGenerator[None]:
    """Run a transaction whose statements are through while the block runs; it commits after the block."""
    written, commit = asyncio.Event(), asyncio.Event()

    async def held(session: Session) -> None:
        await work(session)
        written.set()
        await commit.wait()

    holding = asyncio.create_task(store.database.transact(held))
    try:
        await asyncio.wait([holding, asyncio.create_task(written.wait())], return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        commit.set()
        await holding


async def until_it_waits(store: Store, call: asyncio.Future[Any]) -> None:
    """Return when the call waits for a lock of another transaction, or is through."""

    async def waits() -> bool:
        locks = await store.sql("select 1 from pg_locks where locktype = 'advisory' and not granted")
        return call.done() or bool(locks)

    await eventually(waits, "the call to wait for a lock")


async def all_wait(store: Store, *calls: asyncio.Task[Any]) -> None:
    """Return when each call waits for a lock of another transaction, or is through."""

    async def wait() -> bool:
        # The server has the databases of other tests, too.
        found = await store.sql(
            "select count(distinct pid) as n from pg_locks join pg_stat_activity using (pid) "
            "where not granted and datname = current_database()"
        )
        return found[0]["n"] + sum(call.done() for call in calls) >= len(calls)

    await eventually(wait, "the calls to wait")


async def test_a_cancelled_run_that_pauses_ends_as_cancelled(store: Store) -> None:
    run_id = await store.add()
    claimed = await store.claim_one()
    await cancel_run(store.database, run_id)
    recorded = await store.finish(claimed, Finish(AttemptOutcome.PAUSED, Status.PAUSED))
    assert recorded is not None
    assert recorded.status is Status.CANCELLED
    assert (await store.check_stream(run_id))[-1].type == "done"


@on_postgres
async def test_a_worker_is_not_declared_lost_while_its_claim_is_open(store: Store) -> None:
    await store.add()
    worker = await store.worker()
    memory = LaneMemory()

    async def declared() -> bool:
        return await store.database.transact(
            lambda session: declare_lost(session, worker, silence_seconds=1.0, lock_is_free=False)
        )

    async with held_open(store, lambda session: claim(session, worker, ["job"], 1, memory)):
        await store.expire(worker)
        assert not await declared(), "its runs would have no owner"
    assert await declared()


@on_postgres
async def test_a_run_accepted_behind_a_key_while_its_holder_ends_is_released(store: Store) -> None:
    await store.add(ordering_key="k")
    claimed = await store.claim_one()
    second = new_run(ordering_key="k")
    committer = Committer(store.database, lambda lanes: None)
    await committer.start()

    async def accept_behind(session: Session) -> None:
        await session.lock(exclusive=key_locks(["k"]))
        await accept(session, [second])

    try:
        async with held_open(store, accept_behind):
            ending = asyncio.ensure_future(committer.record(entry_of(claimed, completed()), time.monotonic() + 60))
            await until_it_waits(store, ending)
        assert (await ending).status is Status.COMPLETED
    finally:
        await committer.stop()
    assert await store.status(second.id) is Status.QUEUED


@on_postgres
async def test_the_first_claim_after_a_lane_got_its_cap_takes_nothing(store: Store) -> None:
    """The worker holds the lane's lock shared, as others may: only under an exclusive lock is a count exact."""
    worker, memory = await store.worker(), LaneMemory()
    assert await store.claim(worker, memory=memory) == []
    await set_lane(store.database, "default", LaneChange(max_slots=1))
    await store.add_all(new_run(), new_run())

    async def claim_once() -> tuple[list[Claimed], bool]:
        outcome = await store.database.transact(lambda session: claim(session, worker, ["job"], 5, memory))
        return list(outcome.claims), outcome.again

    assert await claim_once() == ([], True)
    claims, _ = await claim_once()
    assert len(claims) == 1


@on_postgres
async def test_a_claim_passes_runs_that_another_claim_has(store: Store) -> None:
    first, second = await store.add(), await store.add()
    one, two = await store.worker(), await store.worker()
    taken: list[str] = []

    async def take(session: Session) -> None:
        outcome = await claim(session, one, ["job"], 1, LaneMemory())
        taken.extend(claimed.run_id for claimed in outcome.claims)

    async with held_open(store, take):
        assert taken == [first]
        async with asyncio.timeout(10):
            assert [claimed.run_id for claimed in await store.claim(two)] == [second]


@on_postgres
async def test_a_run_accepted_behind_a_key_while_its_holder_dies_is_released(store: Store) -> None:
    await store.add(ordering_key="k", max_losses=0)
    worker = await store.worker()
    await store.claim(worker)
    second = new_run(ordering_key="k")

    async def accept_behind(session: Session) -> None:
        await session.lock(exclusive=key_locks(["k"]))
        await accept(session, [second])

    async with held_open(store, accept_behind):
        dying = asyncio.ensure_future(store.database.transact(lambda session: take_over(session, [worker])))
        await until_it_waits(store, dying)
    assert len((await dying).ended) == 1
    assert await store.status(second.id) is Status.QUEUED


class _Within:
    """A database whose transactions are part of one that is open already."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def transact(self, work: Callable[[Session], Awaitable[Any]]) -> Any:
        return await work(self._session)


@on_postgres
async def test_two_processes_do_not_take_the_last_slot_of_a_provider(store: Store) -> None:
    await set_limits(store.database, "acme", LimitChange(in_flight=1), actor="test")

    def take(database: Any, holder: str) -> Awaitable[SlotGrant | LimitRefusal]:
        request = SlotRequest("acme", holder, [(f"slot of {holder}", 1)], 0.0)
        return take_slots(database, request, lease_seconds=60, stale_seconds=60)

    async with held_open(store, lambda session: take(_Within(session), "one")):
        other = asyncio.ensure_future(take(store.database, "other"))
        await until_it_waits(store, other)
    assert isinstance(await other, LimitRefusal)
