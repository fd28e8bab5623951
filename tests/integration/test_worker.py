"""The worker: cancel, lanes, drain, losing and regaining its registration, and code that does not stop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runlane import Context, RunCancelled, Status, UnknownLane, failpoints
from runlane.store.queue.lanes import LaneChange, move_kinds, set_lane
from runlane.store.queue.reaping import take_over
from runlane.store.queue.record import Recorded, RecordEntry
from runlane.store.queue.run_changes import cancel_run
from runlane.store.queue.workers import list_workers
from runlane.worker import heartbeat
from tests.harness import eventually
from tests.integration.process import Process


async def running(process: Process, run_id: str) -> None:
    async def begun() -> bool:
        return (await process.app.get(run_id)).status is Status.RUNNING

    await eventually(begun, "the start of the run")


# --- cancel


@pytest.mark.parametrize("channel", ["signal", "heartbeat"])
async def test_cancel_interrupts_async_code(process: Process, channel: str) -> None:
    begun, interrupted = asyncio.Event(), asyncio.Event()

    @process.app.task("job")
    async def job(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            interrupted.set()
            raise

    await process.start()
    accepted = await process.app.enqueue("job")
    await eventually(begun.is_set, "the start of the code")
    if channel == "signal":
        await process.app.cancel(accepted.run_id)
    else:
        # As from another process: the cancel is only in the database.
        await cancel_run(await process.app.database(), accepted.run_id)
    run = await process.end(accepted.run_id)
    assert run.status is Status.CANCELLED
    assert interrupted.is_set()
    assert await process.types(run.id) == ["queued", "worker_picked_up", "cancel_requested", "done"]


@pytest.mark.parametrize("way", ["asks", "speaks"])
async def test_cancel_is_cooperative_in_a_thread(process: Process, way: str) -> None:
    swallowed: list[str] = []

    @process.app.task("job")
    def job(ctx: Context) -> None:
        while True:
            time.sleep(0.005)
            if way == "asks":
                if ctx.cancelled:
                    raise RunCancelled
                continue
            try:
                ctx.log("still here")
            except Exception as error:
                swallowed.append(type(error).__name__)

    await process.start()
    accepted = await process.app.enqueue("job")
    await running(process, accepted.run_id)
    await process.app.cancel(accepted.run_id)
    assert (await process.end(accepted.run_id)).status is Status.CANCELLED
    assert swallowed == []


async def test_an_interruption_cannot_be_swallowed_by_except_exception(process: Process) -> None:
    @process.app.task("job")
    async def job(ctx: Context) -> None:
        while True:
            try:
                await ctx.log("on and on")
                await asyncio.sleep(0.005)
            except Exception:
                pass

    await process.start()
    accepted = await process.app.enqueue("job")
    await running(process, accepted.run_id)
    await process.app.cancel(accepted.run_id)
    assert (await process.end(accepted.run_id)).status is Status.CANCELLED


@pytest.mark.settings(cancel_grace_seconds=0.3)
async def test_code_that_swallows_its_cancellation_loses_its_run(process: Process) -> None:
    begun, released = asyncio.Event(), asyncio.Event()

    @process.app.task("job")
    async def job(ctx: Context) -> str:
        begun.set()
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        await ctx.log("too late")
        return "too late"

    worker = await process.start(concurrency=1)
    accepted = await process.app.enqueue("job")
    await eventually(begun.is_set, "the start of the code")
    await process.app.cancel(accepted.run_id)
    run = await process.end(accepted.run_id)
    assert (run.status, run.result) == (Status.CANCELLED, None)
    assert worker.has_stuck_code
    released.set()
    await eventually(lambda: not worker.has_stuck_code, "the end of the stuck code")
    assert (await process.types(run.id))[-1] == "done"


async def test_a_cancelled_run_never_runs_again(process: Process) -> None:
    starts: list[str] = []

    @process.app.task("job")
    async def job(ctx: Context) -> None:
        starts.append(ctx.run_id)
        await asyncio.sleep(600)

    await process.start()
    held = (await process.app.enqueue("job", hold=True)).run_id
    live = (await process.app.enqueue("job")).run_id
    await eventually(lambda: starts, "the start of the code")
    late = (await process.app.enqueue("job", delay_seconds=2)).run_id
    for run_id in (late, held, live):
        await process.app.cancel(run_id)
        assert (await process.end(run_id)).status is Status.CANCELLED
    # Due after the one that was cancelled, so when it starts, that one had its chance.
    other = (await process.app.enqueue("job", delay_seconds=2)).run_id
    await eventually(lambda: other in starts, "the start of the code")
    assert starts == [live, other]
    await process.app.cancel(other)


async def test_a_cancel_between_claim_and_start_takes_effect(process: Process) -> None:
    """The interruption arrives when the execution exists but its code has not begun."""
    started: list[str] = []

    @process.app.task("job")
    async def job(ctx: Context) -> None:
        started.append(ctx.run_id)

    worker = await process.start()
    loop = asyncio.get_running_loop()
    ids: list[str] = []

    def hook(point: str) -> None:
        if point == "claim.committed":
            failpoints.install(None)
            for run_id in ids:
                loop.call_soon(worker._executions.cancel, run_id)

    held = await process.app.enqueue("job", hold=True)
    ids.append(held.run_id)
    failpoints.install(hook)
    await process.app.approve(held.run_id)
    run = await process.end(held.run_id)
    assert (run.status, started) == (Status.CANCELLED, [])
    await eventually(lambda: worker.active == 0, "a free slot")


@pytest.mark.parametrize("plain", [False, True])
async def test_a_cancel_while_the_end_is_stored_does_not_lose_it(
    process: Process, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """The function has returned and its result waits to be stored; interrupting that would leave the run behind."""
    gate, waiting = asyncio.Event(), asyncio.Event()

    @process.app.task("async")
    async def on_loop(ctx: Context) -> str:
        return "finished"

    @process.app.task("plain")
    def in_thread(ctx: Context) -> str:
        return "finished"

    connection = await process.app.connect()
    store_now = connection.committer.record

    async def record(entry: RecordEntry, give_up_at: float) -> Recorded:
        if entry.finish is not None:
            waiting.set()
            await gate.wait()
        return await store_now(entry, give_up_at)

    monkeypatch.setattr(connection.committer, "record", record)
    worker = await process.start()
    accepted = await process.app.enqueue("plain" if plain else "async")
    await asyncio.wait_for(waiting.wait(), 30)
    await process.app.cancel(accepted.run_id)
    # Long enough for every reminder that an interrupted task is sent.
    await asyncio.sleep(1.2)
    gate.set()
    run = await process.end(accepted.run_id)
    assert (run.status, run.result) == (Status.COMPLETED, "finished")
    await eventually(lambda: worker.active == 0, "a free slot")


# --- waiting and starting


async def test_starts_do_not_wait_for_the_poll(process: Process) -> None:
    @process.app.task("job")
    async def job(ctx: Context, n: int) -> int:
        return n

    @process.app.task("again")
    async def again(ctx: Context) -> int:
        from runlane import Retry

        if ctx.attempt < 3:
            raise Retry
        return ctx.attempt

    await set_lane(await process.app.database(), "default", LaneChange(poll_interval_ms=60_000))
    await process.start(concurrency=2)
    for n in range(3):
        assert (await process.run("job", {"n": n})).result == n
    accepted = await process.app.enqueue_many([("job", {"n": n}) for n in range(20)])
    assert [(await process.end(item.run_id)).result for item in accepted] == list(range(20))
    assert (await process.run("again")).result == 3
    keyed = [await process.app.enqueue("job", {"n": n}, ordering_key="k") for n in range(5)]
    assert [(await process.end(item.run_id)).result for item in keyed] == list(range(5))
    assert (await process.run("job", {"n": 9}, delay_seconds=0.05)).result == 9


async def test_a_scheduled_run_starts_when_it_is_due(process: Process) -> None:
    @process.app.task("job")
    async def job(ctx: Context) -> None: ...

    await process.start()
    run = await process.run("job", delay_seconds=0.2)
    assert run.claimed_at_us is not None
    assert run.claimed_at_us - run.accepted_at_us >= 200_000


async def test_a_held_run_starts_when_it_is_approved(process: Process) -> None:
    @process.app.task("job")
    async def job(ctx: Context) -> str:
        return "approved"

    await process.start()
    held = await process.app.enqueue("job", hold=True)
    assert (await process.run("job")).result == "approved"
    assert (await process.app.get(held.run_id)).status is Status.AWAITING_APPROVAL
    assert await process.app.approve(held.run_id) is Status.QUEUED
    assert (await process.end(held.run_id)).result == "approved"


async def test_lanes_change_while_the_worker_runs(process: Process) -> None:
    together: list[int] = []
    now = 0
    gate = asyncio.Event()

    @process.app.task("job")
    async def job(ctx: Context) -> None:
        nonlocal now
        now += 1
        together.append(now)
        await gate.wait()
        now -= 1

    database = await process.app.database()
    await set_lane(database, "default", LaneChange(max_slots=2, poll_interval_ms=50))
    await process.start(concurrency=10)
    accepted = await process.app.enqueue_many([("job", {}) for _ in range(6)])
    await eventually(lambda: now == 2, "two at once")
    await set_lane(database, "default", LaneChange(max_slots=4))
    await eventually(lambda: now == 4, "four at once")
    await set_lane(database, "default", LaneChange(enabled=False))
    gate.set()
    await eventually(lambda: now == 0, "an empty lane")
    assert len(together) == 4
    await set_lane(database, "bulk", LaneChange(poll_interval_ms=50), create=True)
    assert await move_kinds(database, ["job"], "bulk") == 2
    for item in accepted:
        await process.end(item.run_id)
    assert max(together) == 4


async def test_two_workers_in_one_process_share_the_work(process: Process) -> None:
    by_worker: dict[str | None, int] = {}
    barrier = asyncio.Barrier(2)

    @process.app.task("job")
    async def job(ctx: Context) -> None:
        # Each worker has one slot, so both must take one for either to continue.
        await barrier.wait()

    one, two = await process.start(concurrency=1), await process.start(concurrency=1)
    accepted = await process.app.enqueue_many([("job", {}) for _ in range(8)])
    for item in accepted:
        run = await process.end(item.run_id)
        by_worker[run.worker_id] = by_worker.get(run.worker_id, 0) + 1
    assert by_worker == {one.worker_id: 4, two.worker_id: 4}


async def test_a_worker_serves_only_the_lanes_it_was_given(process: Process) -> None:
    @process.app.task("slow", lane="bulk")
    async def slow(ctx: Context) -> None: ...

    @process.app.task("quick", lane="fast")
    async def quick(ctx: Context) -> None: ...

    await process.start(lanes=["fast"])
    waiting = await process.app.enqueue("slow")
    await process.run("quick")
    assert (await process.app.get(waiting.run_id)).status is Status.QUEUED
    with pytest.raises(UnknownLane, match='did you mean "fast"'):
        await process.start(lanes=["fats"])


# --- code that does not stop


@pytest.mark.settings(cancel_grace_seconds=0.2)
async def test_a_stuck_thread_holds_its_slot_and_the_worker_continues(process: Process) -> None:
    released = threading.Event()

    @process.app.task("stuck", max_attempts=1, timeout_seconds=0.1)
    def stuck(ctx: Context) -> None:
        released.wait(60)

    @process.app.task("fine")
    def fine(ctx: Context) -> str:
        return "fine"

    worker = await process.start(concurrency=2)
    try:
        run = await process.run("stuck")
        assert run.status is Status.FAILED
        assert worker.has_stuck_code
        assert worker._executions.free_slots() == 1
        assert [(await process.run("fine")).result for _ in range(3)] == ["fine"] * 3
    finally:
        released.set()
    await eventually(lambda: worker._executions.free_slots() == 2, "both slots")


# --- the end of a worker


async def test_stop_before_start_and_stop_twice(process: Process) -> None:
    @process.app.task("job")
    async def job(ctx: Context) -> None: ...

    worker = await process.app.worker()
    await worker.stop()
    await worker.stop()
    worker = await process.start()
    await process.run("job")
    await worker.stop()
    await worker.stop()
    assert [row.status for row in await list_workers(await process.app.database(), gone_too=True)] == ["offline"]


@pytest.mark.parametrize("plain", [False, True])
async def test_a_drain_lets_runs_finish_and_hands_the_rest_back(process: Process, plain: bool) -> None:
    finish, never = threading.Event(), threading.Event()

    @process.app.task("async")
    async def on_loop(ctx: Context, long: bool) -> int:
        await eventually((never if long else finish).is_set, "leave to end", 600)
        return ctx.attempt

    @process.app.task("plain")
    def in_thread(ctx: Context, long: bool) -> int:
        (never if long else finish).wait(600)
        return ctx.attempt

    name = "plain" if plain else "async"
    worker = await process.start()
    short = (await process.app.enqueue(name, {"long": False})).run_id
    long = (await process.app.enqueue(name, {"long": True})).run_id
    for run_id in (short, long):
        await running(process, run_id)
    stopping = asyncio.create_task(worker.stop(600))
    database = await process.app.database()

    async def draining() -> bool:
        return [row.status for row in await list_workers(database)] == ["draining"]

    try:
        await eventually(draining, "the status of a draining worker")
        late = (await process.app.enqueue(name, {"long": False})).run_id
        finish.set()
        await process.end(short)
        worker.hurry()
        await asyncio.wait_for(stopping, 30)
    finally:
        never.set()
    assert (await process.app.get(short)).status is Status.COMPLETED
    run = await process.app.get(long)
    assert (run.status, run.attempt, run.failures, run.losses) == (Status.QUEUED, 1, 0, 0)
    assert (await process.types(long))[-1] == "handed_back"
    assert (await process.app.get(late)).status is Status.QUEUED
    assert [row.status for row in await list_workers(database, gone_too=True)] == ["offline"]


async def test_hurry_ends_the_grace_period(process: Process) -> None:
    @process.app.task("job")
    async def job(ctx: Context) -> None:
        await asyncio.sleep(600)

    worker = await process.start()
    run_id = (await process.app.enqueue("job")).run_id
    await running(process, run_id)
    stopping = asyncio.create_task(worker.stop(600))
    await eventually(lambda: worker.health.draining, "the drain")
    worker.hurry()
    await asyncio.wait_for(stopping, 30)
    assert (await process.app.get(run_id)).status is Status.QUEUED


# --- losing and regaining its place


async def test_a_worker_that_was_declared_lost_stops_and_comes_back(process: Process) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @process.app.task("job")
    async def job(ctx: Context) -> int:
        if ctx.attempt == 1:
            begun.set()
            try:
                await asyncio.sleep(600)
            finally:
                stopped.set()
        return ctx.attempt

    worker = await process.start()
    run_id = (await process.app.enqueue("job")).run_id
    await eventually(begun.is_set, "the start of the code")
    first = worker.worker_id
    store = await process.store()
    assert first is not None
    await store.sql("update workers set status = 'lost', ended_at = heartbeat_at")
    await store.database.transact(lambda session: take_over(session, [first]))
    run = await process.end(run_id)
    assert (run.result, run.losses, run.failures) == (2, 1, 0)
    assert stopped.is_set()
    assert worker.worker_id not in (None, first)
    await store.check_stream(run_id)


async def test_a_heartbeat_that_fails_in_any_way_is_survived(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is away for a while: not a broken connection, but another error.

    A claim may meet it first; then the worker gives up its registration, and the next registration fails.
    """
    failed: list[str] = []

    def watched(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def watching(*arguments: Any, **named: Any) -> Any:
            try:
                return await call(*arguments, **named)
            except Exception as error:
                failed.append(type(error).__name__)
                raise

        return watching

    monkeypatch.setattr(heartbeat, "renew", watched(heartbeat.renew))
    monkeypatch.setattr(heartbeat, "register", watched(heartbeat.register))

    @process.app.task("job")
    async def job(ctx: Context) -> str:
        return "ok"

    await process.start()
    assert (await process.run("job")).result == "ok"
    store = await process.store()
    await store.sql("alter table workers rename to workers_away")
    try:
        await eventually(lambda: failed, "a sign of life that failed")
    finally:
        await store.sql("alter table workers_away rename to workers")
    assert (await process.run("job")).result == "ok"

    async def last_sign() -> int:
        return max(row.heartbeat_at_us for row in await list_workers(store.database, gone_too=True))

    before = await last_sign()

    async def renewed() -> bool:
        return await last_sign() > before

    await eventually(renewed, "the next heartbeat")


async def test_broken_connections_are_opened_again(process: Process) -> None:
    if process.settings.sqlite_path is not None:
        return  # a file has no connections that could break

    @process.app.task("job")
    async def job(ctx: Context, n: int) -> int:
        await ctx.log("n")
        return n

    await process.start()
    store = await process.store()
    end_all = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() and application_name = 'runlane'"
    )
    for n in range(5):
        accepted = await process.app.enqueue("job", {"n": n})
        await store.sql(end_all)
        assert (await process.end(accepted.run_id)).result == n


async def test_the_active_count_is_stored_with_the_heartbeat(process: Process) -> None:
    gate = asyncio.Event()

    @process.app.task("job")
    async def job(ctx: Context) -> None:
        await gate.wait()

    await process.start(concurrency=7)
    ids = [item.run_id for item in await process.app.enqueue_many([("job", {}) for _ in range(3)])]
    database = await process.app.database()

    async def has_three_active() -> bool:
        (row,) = await list_workers(database)
        return (row.active, row.capacity) == (3, 7)

    await eventually(has_three_active, "three active runs")
    gate.set()
    for run_id in ids:
        await process.end(run_id)


def _half_a_pair(value: Any) -> str:
    return '"half \ud800"'


async def test_a_value_that_the_database_refuses_fails_the_run_and_not_the_worker(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that slipped past the repair: the run must end, and not be retried forever."""
    monkeypatch.setattr("runlane.worker.context.dump_json", _half_a_pair)

    @process.app.task("job", max_attempts=1)
    async def job(ctx: Context, where: str) -> Any:
        if where == "log":
            await ctx.log("x")
        return None

    await process.start()
    run = await process.run("job", {"where": "log"})
    assert run.status is Status.FAILED
    monkeypatch.setattr("runlane.worker.execution.dump_json", _half_a_pair)
    run = await process.run("job", {"where": "result"})
    assert run.status is Status.FAILED
    assert run.error is not None
    assert run.error["type"] == "NotStored"
