"""Race conditions that a storm hits too rarely: each is provoked on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from runlane.domain.options import RunOptions
from runlane.errors import Unavailable
from runlane.store.queue.accept import NewRun
from runlane.store.queue.committer import Committer
from runlane.store.queue.lanes import LaneChange, set_lane
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import CommitInDoubt, Database, Session
from runlane.store.sql.statement import Dialect, Row
from runlane.submit.tasks import TaskRequest
from tests.chaos.cluster import Cluster, MakeCluster, eventually


async def test_code_that_exits_ends_its_run_and_not_its_worker(cluster: Cluster) -> None:
    [worker] = await cluster.start_workers(1)
    worker_id = await cluster.online(worker)
    for task in ("leaves", "leaves_thread"):
        for how in ("exit", "cancelled", "lost"):
            run = await cluster.app.enqueue(task, {"how": how})
            ended = await cluster.app.wait(run.run_id, 30)
            assert (ended.status, ended.attempt, ended.failures) == ("failed", 1, 1), (task, how)
    fresh = await cluster.app.enqueue("short", {"milliseconds": 1})
    assert (await cluster.app.wait(fresh.run_id, 30)).status == "completed"
    assert await cluster.online(worker) == worker_id
    await cluster.check_story()


async def test_a_freed_slot_of_a_capped_lane_is_used_without_a_poll(cluster: Cluster) -> None:
    """With the longest poll interval there is, only the finishing worker itself can notice."""
    database = await cluster.app.database()
    await set_lane(database, "capped", LaneChange(max_slots=1, poll_interval_ms=120_000))
    await set_lane(database, "default", LaneChange(poll_interval_ms=120_000))
    worker = await cluster.app.worker(None, 4)
    await worker.start()
    try:
        await cluster.app.enqueue_many([("capped", {"milliseconds": 1})] * 10)
        await cluster.all_ended(30)
    finally:
        await worker.stop()
    await cluster.check_story()


class Doubtful:
    """A database whose first commit is in doubt and did not happen, and which is away when that is checked."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self.first = True
        self.away = True

    @property
    def dialect(self) -> Dialect:
        return self._inner.dialect

    @property
    def steady_since(self) -> float:
        return self._inner.steady_since

    async def transact(self, work: Callable[[Session], Awaitable[Any]]) -> Any:
        if self.first:
            self.first = False
            raise CommitInDoubt("1")
        return await self._inner.transact(work)

    async def execute_single(
        self, compound: CompoundWrite, members: Sequence[Sequence[Any]], /, **params: Any
    ) -> Sequence[Row]:
        return await self._inner.execute_single(compound, members, **params)

    async def was_committed(self, mark: str) -> bool:
        if self.away:
            raise Unavailable("away")
        return False

    async def close(self) -> None:
        await self._inner.close()


async def test_an_accept_that_was_reported_as_failed_is_not_stored_later(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster("sqlite")
    database = Doubtful(await cluster.app.database())
    committer = Committer(cast("Database", database), lambda lanes: None)
    await committer.start()

    def request(name: str) -> NewRun:
        # An ordering key keeps the request off the fast path for independent runs.
        wanted = TaskRequest("short", {"milliseconds": 1, "label": name}, RunOptions(ordering_key=name))
        return cluster.app._task_run(wanted, tenant="default", trace=None)

    hasty = asyncio.create_task(committer.accept([request("hasty")], 0.3))
    patient = asyncio.create_task(committer.accept([request("patient")], 30))
    with pytest.raises(Unavailable):
        await hasty
    database.away = False
    await patient
    await committer.stop()
    assert [row["ordering_key"] for row in await cluster.rows("select ordering_key from runs")] == ["patient"]


async def test_a_reaper_that_has_just_lost_its_own_line_trusts_no_free_lock(cluster: Cluster) -> None:
    """Its connection may not be the only one that broke: live workers need a moment to take their locks again."""
    from runlane.bus.memory import MemoryBus
    from runlane.maintenance.reaper import Reaper
    from runlane.store.sql.postgres import PostgresDatabase

    [worker] = await cluster.start_workers(1)
    worker_id = await cluster.online(worker)
    settings = cluster.app.settings
    database = await PostgresDatabase.open(settings, 1)
    reaper = Reaper(settings, database, MemoryBus())
    await reaper.run_once()
    worker.kill()
    cut = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> "
    # Dead and silent for long, so that only the reaper's own caution keeps it from being declared lost.
    await cluster.rows(f"update workers set heartbeat_at = 0 where id = '{worker_id}' returning id")
    await cluster.rows(f"{cut} pg_backend_pid()")

    async def cut_off() -> bool:
        return bool(database._idle[0].is_closed())

    await eventually(cut_off, "the end of the reaper's line")
    await reaper.run_once()
    assert (await cluster.workers())[worker_id] == "online"
    database.steady_since = float("-inf")
    await reaper.run_once()
    assert (await cluster.workers())[worker_id] == "lost"
    await database.close()


async def test_a_client_that_vanished_half_way_through_a_statement_does_not_keep_its_locks(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not call that idle: between the parts of a statement it waits forever and keeps its locks."""
    from runlane.store.queue.claim_locks import lane_lock
    from runlane.store.sql import postgres

    with monkeypatch.context() as patch:
        # For this connection alone: a process that waits for its lock must have more time than it has.
        patch.setattr(postgres, "TRANSACTION_MS", 4000)
        vanished = await postgres.connect(cluster.app.settings)
    try:
        await vanished.execute("begin")
        await vanished.execute(f"select pg_advisory_xact_lock({lane_lock('capped')})")
        # It is prepared, and never executed.
        await vanished.prepare("select 'the first part of a statement'")
        [session] = await cluster.rows("select state from pg_stat_activity where query like 'select ''the first%'")
        assert session["state"] == "active", "the server calls it idle now, so its other time-out would do"
        # Waits for the lane's lock, which the vanished client holds.
        await set_lane(await cluster.app.database(), "capped", LaneChange(max_slots=1))
    finally:
        vanished.terminate()
