"""The reaper: a worker that is gone loses its runs, a living one never does."""

from __future__ import annotations

import time

import pytest

from runlane.bus.memory import MemoryBus
from runlane.domain.run import Status
from runlane.maintenance.reaper import Reaper
from runlane.store.failures.letters import read_letter
from runlane.store.queue.liveness_lock import LivenessConnection, open_line
from runlane.store.queue.reaping import take_over
from runlane.store.queue.run_changes import cancel_run
from runlane.store.queue.runs import read_attempts
from runlane.store.queue.workers import Interrupt, begin_draining, list_workers, register, renew, sign_off
from tests.harness import Store, completed, entry_of, eventually, failed_once, new_run

HOUR = 3600


def reaper_of(store: Store) -> Reaper:
    return Reaper(store.settings, store.database, MemoryBus())


async def silence(store: Store, worker_id: str, seconds: float) -> None:
    """Make the worker's last heartbeat as old as that."""
    await store.sql(
        "update workers set heartbeat_at = heartbeat_at - :us where id = :id", us=int(seconds * 1e6), id=worker_id
    )


async def status_of(store: Store, worker_id: str) -> str:
    rows = await store.sql("select status from workers where id = :id", id=worker_id)
    return rows[0]["status"]


async def lock_line(store: Store, worker_id: str) -> LivenessConnection:
    line = await open_line(store.settings, worker_id)
    await register(
        line.database,
        worker_id=worker_id,
        host="h",
        pid=1,
        version="v",
        lanes=(),
        capacity=1,
        has_lock=line.has_lock,
        lease_seconds=600,
    )
    return line


async def test_runs_come_back_at_their_old_place(store: Store) -> None:
    first = await store.add()
    worker = await store.worker()
    claimed = await store.claim_one(worker)
    await store.add(priority=-5)
    await store.expire(worker)
    await reaper_of(store).run_once()
    run = await store.get(first)
    assert (run.status, run.attempt, run.losses, run.failures) == (Status.QUEUED, 1, 1, 0)
    assert await status_of(store, worker) == "lost"
    again = await store.claim_one()
    assert (again.run_id, again.attempt) == (first, 2)
    (attempt,) = await read_attempts(store.database, first)
    assert (attempt["outcome"], attempt["worker_id"]) == ("lost", worker)
    assert await store.event_types(first) == ["queued", "worker_picked_up", "worker_lost", "worker_picked_up"]
    assert await store.record(entry_of(claimed, events=[("log", "{}")])) == {}
    await store.check_stream(first)


async def test_a_worker_whose_lease_holds_loses_nothing(store: Store) -> None:
    run_id = await store.add()
    worker = await store.worker()
    await store.claim_one(worker)
    await silence(store, worker, 100)
    await reaper_of(store).run_once()
    assert await store.status(run_id) is Status.RUNNING
    assert await status_of(store, worker) == "online"


@pytest.mark.parametrize("skew_seconds", [-HOUR, HOUR])
async def test_a_lease_counts_from_the_time_of_the_database(
    store: Store, monkeypatch: pytest.MonkeyPatch, skew_seconds: int
) -> None:
    """The clock of a worker's or a reaper's host may be wrong: neither ends a lease early, nor keeps one alive."""
    living, silent = await store.worker(), await store.worker()
    runs: dict[str, str] = {}
    for worker in (living, silent):
        run_id = await store.add()
        assert (await store.claim_one(worker)).run_id == run_id
        runs[worker] = run_id
    await store.expire(silent)
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + skew_seconds)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + skew_seconds * 10**9)
    assert await renew(store.database, living, 60, 1) == []
    row = (await store.sql("select lease_until - heartbeat_at as lease from workers where id = :id", id=living))[0]
    assert round(row["lease"] / 1_000_000) == 60
    await reaper_of(store).run_once()
    assert await store.status(runs[living]) is Status.RUNNING
    assert await store.status(runs[silent]) is Status.QUEUED
    monkeypatch.undo()
    await reaper_of(store).run_once()
    assert await status_of(store, living) == "online"


async def test_a_worker_that_gets_its_lost_run_again_is_fenced_from_its_first_attempt(store: Store) -> None:
    """A claim is identified by its attempt, not by the worker, whose id is the same for both."""
    run_id = await store.add()
    worker = await store.worker()
    first = await store.claim_one(worker)
    await store.finish(first, failed_once())
    await store.make_due()
    second = await store.claim_one(worker)
    assert (second.run_id, second.attempt) == (run_id, first.attempt + 1)
    before = await store.contents()
    assert await store.record(entry_of(first, events=[("log", "{}")])) == {}
    assert await store.record(entry_of(first, completed('"late"'))) == {}
    assert await store.contents() == before
    assert await store.record(entry_of(second, completed('"second"')))
    assert (await store.get(run_id)).result == "second"


async def test_losses_are_bounded_and_end_in_a_dead_letter(store: Store) -> None:
    run_id = await store.add(max_losses=2, max_attempts=1)
    for loss in range(1, 4):
        worker = await store.worker()
        await store.claim_one(worker)
        await store.expire(worker)
        await reaper_of(store).run_once()
        run = await store.get(run_id)
        assert (run.losses, run.failures) == (loss, 0)
        assert run.status is {1: Status.QUEUED, 2: Status.SCHEDULED, 3: Status.FAILED}[loss]
        await store.make_due()
    letter = await read_letter(store.database, run_id)
    assert letter is not None
    assert letter.error["type"] == "WorkerLost"
    assert [attempt.outcome for attempt in letter.attempts] == ["lost", "lost", "lost"]
    events = await store.check_stream(run_id)
    assert [event.type for event in events][-2:] == ["worker_lost", "done"]


async def test_a_cancelled_run_of_a_lost_worker_ends(store: Store) -> None:
    run_id = await store.add(ordering_key="k")
    second = await store.add(ordering_key="k")
    worker = await store.worker()
    await store.claim_one(worker)
    await cancel_run(store.database, run_id)
    await store.expire(worker)
    await reaper_of(store).run_once()
    assert await store.status(run_id) is Status.CANCELLED
    assert await store.status(second) is Status.QUEUED
    await store.check_stream(run_id)


@pytest.mark.parametrize(("on_dead", "then"), [("skip", Status.QUEUED), ("block", Status.BLOCKED)])
async def test_a_key_is_handed_on_when_its_run_dies_with_a_worker(store: Store, on_dead: str, then: Status) -> None:
    await store.add(ordering_key="k", max_losses=0, on_dead=on_dead)
    second = await store.add(ordering_key="k")
    worker = await store.worker()
    await store.claim_one(worker)
    await store.expire(worker)
    await reaper_of(store).run_once()
    assert await store.status(second) is then


async def test_a_key_is_kept_by_a_run_that_will_run_again(store: Store) -> None:
    first = await store.add(ordering_key="k")
    second = await store.add(ordering_key="k")
    worker = await store.worker()
    await store.claim_one(worker)
    await store.expire(worker)
    await reaper_of(store).run_once()
    assert (await store.status(first), await store.status(second)) == (Status.QUEUED, Status.BLOCKED)


async def test_a_free_lock_and_silence_mean_gone(store: Store) -> None:
    run_id = await store.add()
    line = await lock_line(store, "wrk_a")
    await store.claim_one("wrk_a")
    reaper = reaper_of(store)
    await silence(store, "wrk_a", 100)
    await reaper.run_once()
    assert await store.status(run_id) is Status.RUNNING, "the lock is held"
    await line.close()
    await silence(store, "wrk_a", -100)
    await reaper.run_once()
    assert await store.status(run_id) is Status.RUNNING, "the heartbeat is fresh"
    await silence(store, "wrk_a", 200)
    if not line.has_lock:
        await reaper.run_once()
        assert await status_of(store, "wrk_a") == "online", "behind PgBouncer only the lease counts"
        return

    async def gone() -> bool:
        # A server that just started trusts no lock for some seconds, and it notices a closed socket a moment later.
        await reaper.run_once()
        return await status_of(store, "wrk_a") == "lost"

    await eventually(gone, "the loss of a silent worker without its lock")
    assert await store.status(run_id) is Status.QUEUED


async def test_the_lock_of_a_living_worker_does_not_save_an_expired_lease(store: Store) -> None:
    run_id = await store.add()
    line = await lock_line(store, "wrk_a")
    try:
        await store.claim_one("wrk_a")
        await store.expire("wrk_a")
        await reaper_of(store).run_once()
        assert await store.status(run_id) is Status.QUEUED
        assert await renew(line.database, "wrk_a", 15, 1) is None
    finally:
        await line.close()


async def test_a_lost_worker_leaves_no_lock_file_behind(store: Store) -> None:
    path = store.settings.sqlite_path
    frozen = await lock_line(store, "wrk_frozen")
    killed = await store.worker()
    try:
        if path is not None:
            # A process that is killed does not remove its file, and the kernel releases its lock.
            (path.parent / f"{path.name}.workers" / killed).touch()
        for worker_id in ("wrk_frozen", killed):
            await store.expire(worker_id)
        await reaper_of(store).run_once()
        assert await status_of(store, "wrk_frozen") == await status_of(store, killed) == "lost"
        if path is not None:
            assert {file.name for file in (path.parent / f"{path.name}.workers").iterdir()} == {"wrk_frozen"}
    finally:
        await frozen.close()


async def test_a_draining_worker_keeps_its_runs_while_its_lease_holds(store: Store) -> None:
    run_id = await store.add()
    worker = await store.worker()
    await store.claim_one(worker)
    await begin_draining(store.database, worker, 30.0)
    (draining,) = await list_workers(store.database)
    assert draining.drain_until_us is not None
    assert 0 < draining.drain_until_us - draining.heartbeat_at_us < 40_000_000
    assert await renew(store.database, worker, 600, 1) == []
    await reaper_of(store).run_once()
    assert await store.status(run_id) is Status.RUNNING
    assert not await sign_off(store.database, worker)
    await store.expire(worker)
    await reaper_of(store).run_once()
    assert await store.status(run_id) is Status.QUEUED


async def test_a_renewal_returns_what_was_cancelled(store: Store) -> None:
    run_id = await store.add()
    worker = await store.worker()
    claimed = await store.claim_one(worker)
    assert await renew(store.database, worker, 600, 1) == []
    await cancel_run(store.database, run_id)
    assert await renew(store.database, worker, 600, 1) == [Interrupt(run_id, claimed.attempt)]
    assert await renew(store.database, "wrk_unknown", 600, 1) is None


async def test_a_worker_that_deregisters_is_listed_as_gone(store: Store) -> None:
    worker = await store.worker()
    assert await sign_off(store.database, worker)
    assert not await sign_off(store.database, worker)
    assert await renew(store.database, worker, 15, 0) is None
    assert await list_workers(store.database) == []
    (row,) = await list_workers(store.database, gone_too=True)
    assert (row.id, row.status, row.lanes) == (worker, "offline", ("default",))
    assert row.ended_at_us is not None


async def test_runs_without_a_live_owner_are_found(store: Store) -> None:
    run_id = await store.add()
    worker = await store.worker()
    await store.claim_one(worker)
    await store.sql("delete from workers")
    reaper = reaper_of(store)
    await reaper.run_once()
    assert await store.status(run_id) is Status.RUNNING, "looked for rarely"
    reaper._orphans_at = 0.0
    await reaper.run_once()
    assert await store.status(run_id) is Status.QUEUED


async def test_many_workers_at_once(store: Store) -> None:
    await store.add_all(*(new_run() for _ in range(40)))
    workers = [await store.worker() for _ in range(4)]
    for worker in workers:
        assert len(await store.claim(worker, 10)) == 10
        await store.expire(worker)
    bus = MemoryBus()
    listener = bus.listen(frozenset({"default"}))
    await Reaper(store.settings, store.database, bus).run_once()
    assert (await store.sql("select count(*) as n from runs where status = 'queued'"))[0]["n"] == 40
    assert await listener.wait({"default"}, 0.001), "workers are called at once"


async def test_taking_over_twice_moves_nothing_more(store: Store) -> None:
    await store.add()
    worker = await store.worker()
    await store.claim_one(worker)
    first = await store.database.transact(lambda session: take_over(session, [worker]))
    second = await store.database.transact(lambda session: take_over(session, [worker]))
    assert (first.runs, second.runs) == (1, 0)
