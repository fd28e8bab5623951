"""One run that kills every worker that executes it, among runs of another tenant that do no harm."""

from __future__ import annotations

import asyncio

import pytest

from runlane.store.access.tenants import create_tenant
from tests.chaos.cluster import Cluster, Process

INNOCENT = 50
# 51 runs halve to one in seven losses; then the run is alone, and its third lone loss is one too many.
MAX_KILLS = 12
MAX_MEMORY_MB = 600


def start(cluster: Cluster) -> Process:
    return cluster.start_worker(concurrency=INNOCENT + 10)


async def supervise(cluster: Cluster) -> int:
    """Keep two workers alive until every run has ended; how many have died. The waits between losses are cut short."""
    workers = [start(cluster), start(cluster)]
    deaths = 0
    while await cluster.count("ended_at is null"):
        for place, worker in enumerate(workers):
            if worker.alive and worker.resident_mb > MAX_MEMORY_MB:
                # What the kernel does to a process that is over the limit of its memory cgroup.
                worker.kill()
            if not worker.alive:
                deaths += 1
                assert deaths <= MAX_KILLS
                workers[place] = start(cluster)
        await cluster.skip_waits()
        await asyncio.sleep(0.05)
    return deaths


# A start of a worker takes a second, and half a minute on a machine that is very busy.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("poison", ["segfault", "hoard"])
async def test_the_runs_beside_one_that_kills_its_workers_all_complete(cluster: Cluster, poison: str) -> None:
    database = await cluster.app.database()
    for tenant in ("hostile", "innocent"):
        await create_tenant(database, tenant, actor="test")
    killer = await cluster.app.enqueue(poison, tenant="hostile")
    requests = [("short", {"milliseconds": 1500})] * INNOCENT
    others = await cluster.app.enqueue_many(requests, tenant="innocent")
    async with asyncio.timeout(600):
        deaths = await supervise(cluster)
    assert deaths >= 3
    run = await cluster.app.get(killer.run_id)
    assert (run.status, (run.error or {})["type"]) == ("failed", "WorkerLost")
    ended = await cluster.rows("select status, count(*) as n from runs where tenant = 'innocent' group by status")
    assert ended == [{"status": "completed", "n": len(others)}]
    assert [row["run_id"] for row in await cluster.rows("select run_id from dead_letters")] == [killer.run_id]
    await cluster.check_story()
