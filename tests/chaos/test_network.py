"""A network that loses answers, cuts lines and swallows everything."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any, cast

import asyncpg
import pytest
from pydantic import SecretStr

from runlane import App
from runlane.settings import Settings
from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.chaos.proxy import Proxy


async def test_lost_answers_to_commits_double_nothing_and_cost_no_worker_its_runs(cluster: Cluster) -> None:
    async with Proxy(cluster.url) as proxy:
        await cluster.start_workers(2, concurrency=8, environment={"RUNLANE_DATABASE_URL": proxy.url})
        # The enqueuer has no idempotency keys: the store itself must find out the result of each commit.
        app = App(Settings(database_url=SecretStr(proxy.url)))
        app.include(cluster.app)
        held = await app.enqueue_many([("gated", {"gate": "go"})] * 4)
        await cluster.running(4)
        proxy.doubt = 0.03
        run_ids: list[str] = []
        for _ in range(200):
            accepted = await asyncio.gather(*(app.enqueue("short", {"milliseconds": 5}) for _ in range(5)))
            run_ids += [run.run_id for run in accepted]

        async def shorts_ended() -> bool:
            return await cluster.count("target = 'short' and ended_at is null") == 0

        await eventually(shorts_ended, "the end of the short runs", 120, every=0.2)
        proxy.doubt = 0.0
        cluster.open_gate("go")
        await cluster.all_ended()
        await app.close()
        assert proxy.doubts > 10, "too few lost answers to prove anything"
    run_ids += [run.run_id for run in held]
    assert await cluster.count("true") == len(run_ids) == 1004
    await cluster.check_story()
    cluster.check_effects(run_ids)
    assert await cluster.events("worker_lost") == []
    assert await cluster.count("attempt > 1") == 0


async def test_a_black_holed_worker_stops_by_itself_and_comes_back_under_a_new_id(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(RUNLANE_LEASE_SECONDS="4", RUNLANE_HEARTBEAT_SECONDS="0.3")
    async with Proxy(cluster.url) as proxy:
        cut_off = cluster.start_worker(environment={"RUNLANE_DATABASE_URL": proxy.url})
        old_id = await cluster.online(cut_off)
        runs = await cluster.app.enqueue_many([("gated", {"gate": "go", "note": True})] * 6)
        await cluster.running(6)
        proxy.black_hole()
        [other] = await cluster.start_workers(1)

        async def taken_over() -> bool:
            return await cluster.count("status = 'running' and attempt = 2") == 6

        async def fenced_itself() -> bool:
            return "its lease could not be renewed in time" in cut_off.log_text()

        await eventually(taken_over, "the takeover of every run")
        # The worker that took the runs over waited for the lease to end by the server's clock; the cut-off worker's own
        # count ends before that.
        assert await fenced_itself(), cut_off.log_text()
        cluster.open_gate("go")
        await cluster.all_ended()
        other.kill()
        proxy.heal()

        async def under_a_new_id() -> bool:
            return await cluster.online(cut_off) != old_id

        await eventually(under_a_new_id, "the healed worker under a new id")
        fresh = await cluster.app.enqueue("gated", {"gate": "go"})
        await cluster.app.wait(fresh.run_id, 60)
        await cluster.check_story()
        cluster.check_effects([*(run.run_id for run in runs), fresh.run_id])
        [span] = [span for span in cluster.sink.spans() if span.run_id == fresh.run_id]
        assert span.pid == cut_off.pid
        await cluster.logged(cut_off, "database_back")
        assert cut_off.log_text().count('"database_away"') == 1, "each loop logs the outage"


async def test_a_worker_whose_old_session_lingered_gets_its_lock_back(make_cluster: MakeCluster) -> None:
    """After a cut the server may keep the old session and its lock; when that ends, the worker must take it again.

    The next heartbeat takes it. Until then a worker is safe if its heartbeats are more frequent than `silence_seconds`.
    """
    cluster = await make_cluster(RUNLANE_SILENCE_SECONDS="3", RUNLANE_HEARTBEAT_SECONDS="0.1")
    async with Proxy(cluster.url) as proxy:
        worker = cluster.start_worker(environment={"RUNLANE_DATABASE_URL": proxy.url})
        worker_id = await cluster.online(worker)
        await cluster.start_workers(1, lanes="capped")
        lingering = proxy.cut_clients()

        async def renewed() -> bool:
            [row] = await cluster.rows(f"select heartbeat_at - {since} as age from workers where id = '{worker_id}'")
            return row["age"] > 0

        [row] = await cluster.rows("select max(heartbeat_at) as at from workers")
        since = row["at"] + 1_000_000
        await eventually(renewed, "a heartbeat over the new line")
        for line in lingering:
            line.server.close()
        [row] = await cluster.rows("select max(heartbeat_at) as at from workers")
        since = row["at"] + 2_000_000
        await eventually(renewed, "heartbeats after the old session ended")
        # Silent for longer than silence_seconds: only the lock shows that the worker lives.
        run = await cluster.app.enqueue("hold_gil", {"seconds": 4})
        ended = await cluster.app.wait(run.run_id, 60)
        assert ended.result["longest"] > 3.5
        assert await cluster.events("worker_lost") == []
        assert (await cluster.workers())[worker_id] == "online"


@pytest.mark.parametrize("how", ["terminate", "crash"])
async def test_cut_sessions_cost_no_live_worker_its_runs(cluster: Cluster, how: str) -> None:
    workers = await cluster.start_workers(2)
    ids = {await cluster.online(worker) for worker in workers}
    runs = await cluster.app.enqueue_many([("gated", {"gate": "go"})] * 12)
    await cluster.running(12)
    more: list[str] = []
    for _ in range(4):
        more += [run.run_id for run in await cluster.app.enqueue_many([("short", {"milliseconds": 5})] * 20)]
        if how == "terminate":
            await cluster.rows(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        else:
            await crash_one_backend(cluster)

        [now] = await cluster.rows("select (extract(epoch from clock_timestamp()) * 1000000)::bigint as at")

        async def heartbeats_again(since: int = now["at"]) -> bool:
            rows = await cluster.rows(f"select id from workers where status = 'online' and heartbeat_at > {since}")
            return {row["id"] for row in rows} == ids

        await eventually(heartbeats_again, "heartbeats of both workers")
    cluster.open_gate("go")
    await cluster.all_ended()
    await cluster.check_story()
    cluster.check_effects([*(run.run_id for run in runs), *more])
    assert await cluster.events("worker_lost") == []
    workers_now = await cluster.workers()
    assert workers_now == dict.fromkeys(ids, "online")


async def crash_one_backend(cluster: Cluster) -> None:
    """SIGKILL one server process: the server drops every session and recovers."""
    witness = await cast("Any", asyncpg).connect(cluster.url)
    # The oldest one: the newest may belong to a client that has just left, and end by itself.
    row = await witness.fetchrow(
        "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
        "order by backend_start limit 1"
    )
    os.kill(row["pid"], signal.SIGKILL)

    async def noticed() -> bool:
        return bool(witness.is_closed())

    # Before that it may still take connections, which then are dropped like all others.
    await eventually(noticed, "the end of every session")

    async def back() -> bool:
        try:
            await cluster.rows("select 1 as one")
        except Exception:
            return False
        return True

    await eventually(back, "the server")
