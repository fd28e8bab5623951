"""What readers receive equals what the database holds, whichever process dies or vanishes meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable

import httpx2
import pytest

from runlane.testing import RedisServer
from runlane.testing.crash_points import CrashPoint
from tests.chaos.cluster import Cluster, MakeCluster, Process, eventually
from tests.chaos.reader import API, Reader, wire
from tests.scale import scaled

RUNS = scaled(120, 200)
LINES = 100
# The events of a run: its lines, a checkpoint after every ten, and its accept, claim and end.
LEAST_EVENTS = LINES + LINES // 10 + 3
SEED = "TEST_SEED"


def chance() -> random.Random:
    """Return random choices; the printed seed, given as TEST_SEED, repeats them."""
    seed = int(os.environ.get(SEED) or secrets.randbelow(2**32))
    print(f"{SEED}={seed}")
    return random.Random(seed)


def command(redis: RedisServer, text: str) -> None:
    """Send one command to Redis."""
    with socket.create_connection(("127.0.0.1", redis.port), timeout=10) as link:
        link.sendall(f"{text}\r\n".encode())
        assert link.recv(100).startswith(b"+OK")


class Disturbance:
    """Kills workers, and stops, empties and restarts Redis, while the runs are executed."""

    def __init__(self, cluster: Cluster, redis: RedisServer, dice: random.Random, concurrency: int) -> None:
        self._cluster = cluster
        self._redis = redis
        self._dice = dice
        self._concurrency = concurrency
        self.done: list[str] = []

    async def kill_worker(self) -> None:
        workers = [process for process in self._cluster.processes if process.name == "worker" and process.alive]
        victim: Process = self._dice.choice(workers)
        victim.kill()
        self._cluster.start_worker(concurrency=self._concurrency)

    async def stop_redis(self) -> None:
        self._redis.kill()

    async def start_redis(self) -> None:
        await asyncio.to_thread(self._redis.start)

    async def flush_redis(self) -> None:
        await asyncio.to_thread(command, self._redis, "flushall")

    async def restart_redis(self) -> None:
        await asyncio.to_thread(self._redis.restart)

    async def all(self, expected_events: int) -> None:
        """Do one after another, each when a further share of the events is stored, however slow the machine is."""
        steps: list[Callable[[], Awaitable[None]]] = [
            self.flush_redis, self.kill_worker, self.stop_redis, self.kill_worker, self.start_redis, self.flush_redis,
            self.kill_worker, self.restart_redis, self.stop_redis, self.kill_worker, self.start_redis,
        ]  # fmt: skip
        for number, step in enumerate(steps, 1):
            await self._stored(expected_events * number // (len(steps) + 1))
            await step()
            self.done.append(step.__name__)

    async def _stored(self, events: int) -> None:
        async def enough() -> bool:
            return (await self._cluster.rows("select count(*) as n from run_events"))[0]["n"] >= events

        await eventually(enough, f"{events} events", 200, every=0.1)


async def accept(urls: list[str], task: str, count: int, **arguments: object) -> list[str]:
    """Start runs over HTTP, a share of them through each replica."""
    run_ids: list[str] = []
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
        for number in range(0, count, 50):
            body = {"runs": [{"task": task, "input": arguments}] * min(50, count - number)}
            answer = await client.post(f"{urls[number // 50 % len(urls)]}{API}/runs/batch", json=body)
            assert answer.status_code == 202, answer.text
            run_ids += [run["run_id"] for run in answer.json()["runs"]]
    return run_ids


async def stored(cluster: Cluster) -> dict[str, list[tuple[int, bytes]]]:
    """Return what every reader of each run must hold."""
    expected: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for row in await cluster.events():
        expected[row["run_id"]].append(wire(row))
    return expected


async def test_every_reader_holds_what_the_database_holds(make_cluster: MakeCluster, chaos_redis: RedisServer) -> None:
    cluster = await make_cluster(RUNLANE_REDIS_URL=chaos_redis.url)
    dice = chance()
    urls = await cluster.start_servers(3)
    await cluster.start_workers(2, concurrency=60)
    run_ids = await accept(urls, "lines", RUNS, lines=LINES, pause_seconds=0.03)
    # One reader of each run, and a second one of some. They reconnect, which would hide a stalled stream, so others
    # stay on one connection to one server.
    readers = [Reader(run_id) for run_id in [*run_ids, *run_ids[:50]]]
    steady = [Reader(run_id) for run_id in run_ids[-60:]]
    following = [asyncio.create_task(reader.follow(urls, random.Random(dice.random()))) for reader in readers]
    following += [asyncio.create_task(reader.read(urls[number % len(urls)])) for number, reader in enumerate(steady)]
    disturbance = Disturbance(cluster, chaos_redis, dice, concurrency=60)
    disturbing = asyncio.create_task(disturbance.all(RUNS * LEAST_EVENTS))
    try:
        async with asyncio.timeout(400):
            await asyncio.gather(disturbing, *following)
    finally:
        for task in (disturbing, *following):
            task.cancel()
    await cluster.all_ended()
    # Readers that connect after the end of the run get the same events.
    late = [Reader(run_id) for run_id in dice.sample(run_ids, 30)]
    await asyncio.gather(*(reader.read(dice.choice(urls)) for reader in late))
    expected = await stored(cluster)
    assert sorted(expected) == sorted(run_ids)
    for reader in [*readers, *steady, *late]:
        assert reader.lines == expected[reader.run_id]
        assert reader.done
        assert [seq for seq, _ in reader.lines] == list(range(1, len(reader.lines) + 1))
        assert len(reader.lines) >= LEAST_EVENTS
    assert {reader.connections for reader in steady} == {1}
    await cluster.check_story()
    assert await cluster.count("status = 'completed'") == RUNS
    assert len(disturbance.done) == 11
    assert len(await cluster.events("worker_lost")) >= 20, "too few runs were hit to prove anything"
    assert sum(reader.connections for reader in readers) >= 2 * len(readers), "too few cuts to prove anything"


# Failpoints between a commit and its publication, and what the dead process would have published.
UNPUBLISHED = {"claim.committed": "worker_picked_up", "record.committed": "log", "finish.committed": "done"}


def start_reading(run_ids: list[str], url: str) -> tuple[list[Reader], list[asyncio.Task[None]]]:
    readers = [Reader(run_id) for run_id in run_ids]
    return readers, [asyncio.create_task(reader.read(url)) for reader in readers]


async def have_received(readers: list[Reader], kind: str) -> None:
    async def received() -> bool:
        return all(any(event.type == kind for event in reader.received) for reader in readers)

    await eventually(received, f"{kind} in every stream")


async def check_end(cluster: Cluster, readers: list[Reader], reading: list[asyncio.Task[None]]) -> None:
    """Check that every stream reached its end over one connection and holds what the database holds."""
    async with asyncio.timeout(60):
        await asyncio.gather(*reading)
    expected = await stored(cluster)
    for reader in readers:
        assert (reader.connections, reader.done) == (1, True)
        assert reader.lines == expected[reader.run_id]


@pytest.mark.parametrize("point", UNPUBLISHED)
async def test_an_event_that_was_committed_and_never_published_is_read(
    make_cluster: MakeCluster, chaos_redis: RedisServer, point: str
) -> None:
    """While no worker runs and none is declared lost, nothing else is published that could bring it along."""
    cluster = await make_cluster(RUNLANE_REDIS_URL=chaos_redis.url, RUNLANE_LEASE_SECONDS="3600")
    server = cluster.start_server(environment={"RUNLANE_SILENCE_SECONDS": "3600"})
    url = await cluster.url_of(server)
    await cluster.logged(server, "redis_connected")
    readers, reading = start_reading(await accept([url], "lines", 1, lines=2), url)
    await have_received(readers, "queued")
    victim = cluster.start_worker(concurrency=1, crash=CrashPoint(point))
    assert await victim.ended() == -signal.SIGKILL, victim.log_text()
    assert len(await cluster.events(UNPUBLISHED[point])) == 1
    await have_received(readers, UNPUBLISHED[point])
    await cluster.start_workers(1)
    await check_end(cluster, readers, reading)
    await cluster.check_story()


async def test_a_cancel_that_was_committed_and_never_published_is_read_and_obeyed(
    make_cluster: MakeCluster, chaos_redis: RedisServer
) -> None:
    """The replica of the request dies; the worker gets the cancel by its heartbeat, the readers from the database."""
    cluster = await make_cluster(RUNLANE_REDIS_URL=chaos_redis.url)
    server = cluster.start_server()
    url = await cluster.url_of(server)
    await cluster.logged(server, "redis_connected")
    await cluster.start_workers(1)
    [run_id] = await accept([url], "endless", 1)
    readers, reading = start_reading([run_id], url)
    await have_received(readers, "worker_picked_up")
    victim = cluster.start_server(crash=CrashPoint("operate.committed"))
    asked = await cluster.url_of(victim)
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
        with pytest.raises(httpx2.TransportError):
            await client.post(f"{asked}{API}/runs/{run_id}/cancel")
    assert await victim.ended() == -signal.SIGKILL
    await check_end(cluster, readers, reading)
    assert len(await cluster.events("cancel_requested")) == 1
    assert await cluster.count("status = 'cancelled'") == 1
    await cluster.check_story()
