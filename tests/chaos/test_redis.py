"""Redis affects speed, not correctness: stopped at any moment it costs time, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import httpx2
import pytest

from runlane.store.queue.lanes import LaneChange, set_lane
from runlane.testing import RedisServer
from tests.chaos.cluster import Cluster, MakeCluster, Process, eventually
from tests.chaos.reader import API

# Longer than a test waits for a run, so that only a bell can start one in time.
NO_POLL_SECONDS = 120.0
POLL_SECONDS = 2.0
TRIES = 3
TASK = {"task": "short", "input": {"milliseconds": 1}}


class Replica:
    """An API process and a client of it."""

    def __init__(self, url: str, process: Process) -> None:
        self.process = process
        self._client = httpx2.AsyncClient(base_url=f"{url}{API}", timeout=60, trust_env=False)

    async def post(self, path: str, body: Any = None) -> dict[str, Any]:
        answer = await self._client.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    async def run(self, task: str, **arguments: Any) -> str:
        return str((await self.post(f"/tasks/{task}/run", {"input": arguments}))["run_id"])

    async def close(self) -> None:
        await self._client.aclose()


Serve = Callable[[Cluster], Awaitable[Replica]]


@pytest.fixture
async def serve() -> AsyncGenerator[Serve]:
    """Start API processes of a cluster: replica = await serve(cluster)."""
    replicas: list[Replica] = []

    async def start(cluster: Cluster) -> Replica:
        server = cluster.start_server()
        replicas.append(Replica(await cluster.url_of(server), server))
        return replicas[-1]

    yield start
    for replica in replicas:
        await replica.close()


async def slow_polls(cluster: Cluster, seconds: float) -> None:
    """Without a bell a run is found after this time at the latest, not after a quarter of a second."""
    database = await cluster.app.database()
    for lane in ("default", "capped"):
        await set_lane(database, lane, LaneChange(poll_interval_ms=int(seconds * 1000)))


async def check_starts(cluster: Cluster, replica: Replica) -> None:
    """Check that runs, accepted one at a time, are executed by an idle worker."""
    for _ in range(TRIES):
        run = await cluster.app.wait(await replica.run("short", milliseconds=1), 60)
        assert (run.status, run.attempt) == ("completed", 1)


async def check_once(cluster: Cluster, run_ids: list[str]) -> None:
    """Check that every accepted run exists once and had its effect once."""
    await cluster.all_ended()
    assert await cluster.count("true") == len(set(run_ids)) == len(run_ids)
    assert await cluster.count("status = 'completed'") == len(run_ids)
    await cluster.check_story()
    cluster.check_effects(run_ids)


async def test_runs_start_by_bells_before_and_after_redis_was_away(
    make_cluster: MakeCluster, chaos_redis: RedisServer, serve: Serve
) -> None:
    cluster = await make_cluster(RUNLANE_REDIS_URL=chaos_redis.url)
    await slow_polls(cluster, NO_POLL_SECONDS)
    replica = await serve(cluster)
    [worker] = await cluster.start_workers(1, concurrency=1)
    for process in (replica.process, worker):
        await cluster.logged(process, "redis_connected")
    await check_starts(cluster, replica)
    # The only slot is in use meanwhile: a worker that waits for a bell when Redis dies would sleep until its next poll.
    held = await replica.run("gated", gate="go")
    await cluster.running()
    chaos_redis.kill()
    for process in (replica.process, worker):
        await cluster.logged(process, "redis_away")
    await asyncio.to_thread(chaos_redis.start)
    for process in (replica.process, worker):
        await cluster.logged(process, "redis_connected", times=2)
    # The first wait over a connection that Redis has closed fails, and ends with a poll.
    await slow_polls(cluster, POLL_SECONDS)
    cluster.open_gate("go")
    await cluster.app.wait(held, 60)
    await check_starts(cluster, replica)
    # With the first of these runs the worker gets the interval again. Only bells can start the others.
    await slow_polls(cluster, NO_POLL_SECONDS)
    await check_starts(cluster, replica)
    await check_once(cluster, [row["id"] for row in await cluster.rows("select id from runs")])


async def test_runs_start_by_the_poll_without_redis(
    make_cluster: MakeCluster, chaos_redis: RedisServer, serve: Serve
) -> None:
    cluster = await make_cluster(RUNLANE_REDIS_URL=chaos_redis.url)
    await slow_polls(cluster, POLL_SECONDS)
    replica = await serve(cluster)
    [worker] = await cluster.start_workers(1)
    for process in (replica.process, worker):
        await cluster.logged(process, "redis_connected")
    chaos_redis.kill()
    for process in (replica.process, worker):
        await cluster.logged(process, "redis_away")
    await check_starts(cluster, replica)
    await check_once(cluster, [row["id"] for row in await cluster.rows("select id from runs")])


async def test_redis_dies_while_runs_are_accepted(
    make_cluster: MakeCluster, chaos_redis: RedisServer, serve: Serve
) -> None:
    cluster = await make_cluster(RUNLANE_REDIS_URL=chaos_redis.url)
    replicas = [await serve(cluster) for _ in range(2)]
    await cluster.start_workers(2)
    for replica in replicas:
        await cluster.logged(replica.process, "redis_connected")
    accepted: list[str] = []

    async def ask(replica: Replica, batches: int) -> None:
        for number in range(batches):
            if number % 2:
                accepted.append(await replica.run("short", milliseconds=1))
            else:
                answer = await replica.post("/runs/batch", {"runs": [TASK] * 5})
                accepted.extend(run["run_id"] for run in answer["runs"])

    async def so_many(count: int) -> None:
        async def enough() -> bool:
            return len(accepted) >= count

        await eventually(enough, f"{count} accepted runs", every=0.01)

    asking = [asyncio.create_task(ask(replica, 60)) for replica in replicas for _ in range(3)]
    await so_many(300)
    chaos_redis.kill()
    await so_many(600)
    await asyncio.to_thread(chaos_redis.start)
    await asyncio.gather(*asking)
    assert len(accepted) == 6 * 30 * 6
    await check_once(cluster, accepted)


async def test_redis_loses_every_bell_of_what_was_accepted(
    make_cluster: MakeCluster, chaos_redis: RedisServer, serve: Serve
) -> None:
    """No worker waited for the bells yet, and one that starts later finds neither them nor Redis."""
    cluster = await make_cluster(RUNLANE_REDIS_URL=chaos_redis.url)
    await slow_polls(cluster, POLL_SECONDS)
    replica = await serve(cluster)
    await cluster.logged(replica.process, "redis_connected")
    accepted = [await replica.run("short", milliseconds=1) for _ in range(20)]
    chaos_redis.kill()
    accepted += [await replica.run("short", milliseconds=1) for _ in range(20)]
    await cluster.start_workers(2, concurrency=3)
    await cluster.all_ended()
    await asyncio.to_thread(chaos_redis.start)
    await check_once(cluster, accepted)


# With a heartbeat slower than the test waits, only the signal over Redis can be in time.
SLOW_HEARTBEAT = {"RUNLANE_HEARTBEAT_SECONDS": "120", "RUNLANE_LEASE_SECONDS": "600"}
CANCELS = 3


@pytest.mark.parametrize("with_redis", ["running", "stopped", "none"])
async def test_a_cancel_through_another_process_stops_async_code(
    make_cluster: MakeCluster, chaos_redis: RedisServer, serve: Serve, with_redis: str
) -> None:
    environment = {} if with_redis == "none" else {"RUNLANE_REDIS_URL": chaos_redis.url}
    cluster = await make_cluster(**environment, **(SLOW_HEARTBEAT if with_redis == "running" else {}))
    replica = await serve(cluster)
    [worker] = await cluster.start_workers(1)
    for process in (replica.process, worker) if environment else ():
        await cluster.logged(process, "redis_connected")
    if with_redis == "stopped":
        chaos_redis.kill()
        for process in (replica.process, worker):
            await cluster.logged(process, "redis_away")
    run_ids = [await replica.run("endless") for _ in range(CANCELS)]
    await cluster.running(CANCELS)
    for run_id in run_ids:
        assert (await replica.post(f"/runs/{run_id}/cancel"))["run_id"] == run_id

        async def stopped(run_id: str = run_id) -> int | None:
            return next(span.ended_ns for span in cluster.sink.spans() if span.run_id == run_id)

        await eventually(stopped, "the end of the code", every=0.01)
    await cluster.all_ended()
    assert await cluster.count("status = 'cancelled' and attempt = 1") == CANCELS
    await cluster.check_story()
