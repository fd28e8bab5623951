"""Thousands of runs while workers are killed and the server restarts: every run ends, every effect happens once."""

from __future__ import annotations

import asyncio
import random

import pytest

from runlane.testing import PostgresServer
from tests.chaos.cluster import Cluster, MakeCluster, eventually

RUNS = 5000
KILL_EVERY_SECONDS = 3.0


async def kill_now_and_then(cluster: Cluster, chance: random.Random, concurrency: int = 10) -> None:
    """SIGKILL a random worker every few seconds and start another in its place, until cancelled."""
    while True:
        await asyncio.sleep(KILL_EVERY_SECONDS * chance.uniform(0.7, 1.3))
        victim = chance.choice([process for process in cluster.processes if process.alive])
        victim.kill()
        cluster.start_worker(concurrency=concurrency)


async def check_everything(cluster: Cluster, run_ids: list[str]) -> None:
    await cluster.check_story()
    cluster.check_effects(run_ids)
    statuses = await cluster.rows("select status, count(*) as n from runs group by status")
    assert statuses == [{"status": "completed", "n": len(run_ids)}]
    assert await cluster.count("failures > 0") == 0
    assert await cluster.rows("select * from dead_letters") == []


@pytest.mark.timeout(240)
async def test_5000_runs_on_postgres_with_kills_and_a_restart(
    make_cluster: MakeCluster, chaos_postgres: PostgresServer
) -> None:
    cluster = await make_cluster()
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


@pytest.mark.timeout(240)
async def test_5000_runs_on_one_sqlite_file_with_kills(make_cluster: MakeCluster) -> None:
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
