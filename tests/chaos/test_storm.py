"""Thousands of runs while workers are killed and the server restarts: every run ends, every effect happens once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import asyncpg

from runlane.errors import Unavailable
from runlane.testing import PostgresServer
from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.chaos.proxy import Proxy
from tests.scale import scaled

RUNS = scaled(900, 5000)
MIXED_RUNS = scaled(500, 900)
KILL_EVERY_SECONDS = scaled(0.8, 3.0)


async def kill_now_and_then(cluster: Cluster, chance: random.Random, concurrency: int = 10) -> None:
    """SIGKILL a random worker every few seconds and start others for those that ended, until cancelled.

    The next kill waits until they are online, however slow the machine is.
    """
    count = sum(process.alive for process in cluster.processes)
    while True:
        await asyncio.sleep(KILL_EVERY_SECONDS * chance.uniform(0.7, 1.3))
        living = [process for process in cluster.processes if process.alive]
        if living:
            victim = chance.choice(living)
            victim.kill()
            living.remove(victim)
        for _ in range(count - len(living)):
            other = cluster.start_worker(concurrency=concurrency)
            # A worker ends if the server or its answer is lost while it starts, and the server may not answer here.
            with suppress(AssertionError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await cluster.online(other)


async def check_everything(cluster: Cluster, run_ids: list[str]) -> None:
    await cluster.check_story()
    cluster.check_effects(run_ids)
    assert await cluster.rows("select run_id, error from run_results where error is not null") == []
    statuses = await cluster.rows("select status, count(*) as n from runs group by status")
    assert statuses == [{"status": "completed", "n": len(run_ids)}]
    assert await cluster.count("failures > 0") == 0
    assert await cluster.rows("select * from dead_letters") == []


async def test_many_runs_on_postgres_with_kills_and_a_restart(
    make_cluster: MakeCluster, chaos_postgres: PostgresServer
) -> None:
    cluster = await make_cluster(shipped_defaults=True)
    chance = random.Random(20)
    await cluster.start_workers(3, concurrency=6)
    requests = [("short", {"milliseconds": chance.uniform(20, 110)}) for _ in range(RUNS)]
    runs = await cluster.app.enqueue_many(requests)
    killing = asyncio.create_task(kill_now_and_then(cluster, chance, concurrency=6))

    async def half_is_done() -> bool:
        return await cluster.count("ended_at is not null") > RUNS / 2

    await eventually(half_is_done, "half of the runs", 120, every=0.2)
    await asyncio.to_thread(chaos_postgres.restart)
    await cluster.all_ended(120)
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    assert sum(not process.alive for process in cluster.processes) >= 3, "too few kills to prove anything"
    assert await cluster.events("worker_lost")
    await check_everything(cluster, [run.run_id for run in runs])


async def test_many_runs_on_one_sqlite_file_with_kills(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster("sqlite")
    chance = random.Random(21)
    await cluster.start_workers(2, concurrency=9)
    requests = [("short", {"milliseconds": chance.uniform(20, 110)}) for _ in range(RUNS)]
    runs = await cluster.app.enqueue_many(requests)
    killing = asyncio.create_task(kill_now_and_then(cluster, chance, concurrency=9))
    await cluster.all_ended(180)
    killing.cancel()
    await asyncio.gather(killing, return_exceptions=True)
    assert sum(not process.alive for process in cluster.processes) >= 3, "too few kills to prove anything"
    assert await cluster.events("worker_lost")
    await check_everything(cluster, [run.run_id for run in runs])


async def insist(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until the database answers, as a client does."""
    while True:
        try:
            return await ask()
        except Unavailable:
            await asyncio.sleep(0.1)


async def test_everything_at_once(make_cluster: MakeCluster, chaos_postgres: PostgresServer) -> None:
    """Mixed kinds of runs, cancels, workers that are killed behind a network that loses answers, and a server crash."""
    cluster = await make_cluster(shipped_defaults=True)
    chance = random.Random(25)
    async with Proxy(cluster.url) as proxy:
        cluster.environment["RUNLANE_DATABASE_URL"] = proxy.url
        await cluster.start_workers(3)
        proxy.doubt = scaled(0.02, 0.01)
        killing = asyncio.create_task(kill_now_and_then(cluster, chance))
        kinds: dict[str, str] = {}
        cancelled: set[str] = set()
        for number in range(MIXED_RUNS):
            task = chance.choice(["short", "short", "saving", "later", "hopeless", "capped"])
            arguments = {"milliseconds": chance.uniform(1, 100)} if task in ("short", "capped") else {}
            key = f"key-{chance.randrange(20)}" if chance.random() < 0.4 else None
            accepted = await insist(
                partial(
                    cluster.app.enqueue, task, arguments, ordering_key=key, idempotency_key=f"run-{number}",
                    priority=chance.randrange(-5, 5), delay_seconds=chance.choice([0, 0, 0, 0.3]),
                )
            )  # fmt: skip
            kinds[accepted.run_id] = task
            if chance.random() < 0.1:
                cancelled.add(accepted.run_id)
                await insist(partial(cluster.app.cancel, accepted.run_id))
            if number == MIXED_RUNS // 2:
                chaos_postgres.kill()
                await asyncio.to_thread(chaos_postgres.start)
        await cluster.all_ended(120)
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
        assert killing.cancelled(), "the killing stopped by itself"
        assert proxy.doubts > 5, "too few lost answers to prove anything"
    assert len(kinds) == await cluster.count("true") == MIXED_RUNS
    await cluster.check_story()
    rows = {row["id"]: row for row in await cluster.rows("select * from runs")}
    for run_id, task in kinds.items():
        expected = ["failed" if task == "hopeless" else "completed"] + ["cancelled"] * (run_id in cancelled)
        assert rows[run_id]["status"] in expected, rows[run_id]
    done = {run_id for run_id, row in rows.items() if row["status"] != "cancelled"}
    assert done <= set(cluster.sink.effects()) <= set(kinds)
    assert await cluster.count("holds_key") == 0
    letters = {row["run_id"] for row in await cluster.rows("select run_id from dead_letters")}
    assert letters == {run_id for run_id, row in rows.items() if row["status"] == "failed"}
