"""Sentinel and cluster, with real servers: every message between processes arrives, even after a failover."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from runlane.bus.redis import RedisBus
from runlane.domain.events import Delta, Notice, StoredEvent
from runlane.settings import Settings
from tests.acceptance.api.serving import API, Api, copy_of, frames, serving
from tests.acceptance.api.shop import app as shop
from tests.harness import eventually, settings_for
from tests.integration.process import Process
from tests.integration.redis_topology import Cluster, Watched, ask, redis_cluster, watched_redis

# redis-py leaves connections to a killed server open, and the garbage collector may find them during a test.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed Connection:ResourceWarning")
Topology = Watched | Cluster
PREFIX = "runlane"
_numbers = count(1)


@pytest.fixture(params=["sentinel", "cluster"])
def topology(request: pytest.FixtureRequest) -> Generator[Topology]:
    opened = watched_redis() if request.param == "sentinel" else redis_cluster(f"{{{PREFIX}:bell}}:default")
    with opened as found:
        yield found
    # redis-py does not wait for the connections of a node that has left the cluster to end. What it left behind is
    # collected here, and not in some later test that would fail for it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def fail_over(topology: Topology) -> None:
    """SIGKILL to the primary that the bells depend on."""
    (topology.primary if isinstance(topology, Watched) else topology.owner).kill()


@asynccontextmanager
async def two_buses(url: str) -> AsyncGenerator[tuple[RedisBus, RedisBus]]:
    """Yield the buses of two processes."""
    buses = RedisBus(url, PREFIX), RedisBus(url, PREFIX)
    try:
        for bus in buses:
            await bus.start()
        for bus in buses:
            await eventually(lambda bus=bus: bus.connected, "the bus is connected")
        yield buses
    finally:
        for bus in buses:
            await bus.stop()


async def check_everything_arrives(one: RedisBus, other: RedisBus) -> None:
    """Publish each kind of message until it arrives: during a failover of Redis a message may be lost."""
    run_id = f"run_{next(_numbers)}"
    events: list[Notice | Delta] = []
    cancels: list[str] = []
    ends = [other.follow(run_id, events.append), other.on_cancel(cancels.append)]
    listener = other.listen(None)

    async def say() -> bool:
        notice = Notice(run_id, 1, (StoredEvent(1, "log", 1, 0, "{}"),))
        delta = Delta(run_id, 1, "progress", "{}")
        one.publish([notice])
        one.send_delta(delta)
        one.signal_cancel(run_id)
        await asyncio.sleep(0.05)
        return notice in events and delta in events and run_id in cancels

    async def ring() -> bool:
        # What rang before, such as a connection that came back, must not count.
        while await listener.wait(["default"], 0.05):
            pass
        assert one.connected
        one.ring(["default"])
        return await listener.wait(["default"], 2)

    try:
        await eventually(say, "events, deltas and cancel signals arrive")
        await eventually(ring, "a bell arrives")
    finally:
        listener.close()
        for end in ends:
            end()


async def test_everything_arrives_before_and_after_a_failover(topology: Topology) -> None:
    async with two_buses(topology.url) as (one, other):
        await check_everything_arrives(one, other)
        await check_everything_arrives(other, one)
        followed: list[Notice | Delta] = []
        other.follow("run_all_along", followed.append)
        fail_over(topology)
        await eventually(topology.replica_leads, "the replica leads")
        for bus in (one, other):
            await eventually(lambda bus=bus: bus.connected, "the bus is connected again")
        await check_everything_arrives(one, other)
        await check_everything_arrives(other, one)
        # An earlier subscription still works.
        notice = Notice("run_all_along", 7, (StoredEvent(7, "log", 1, 0, "{}"),))

        async def has_arrived() -> bool:
            one.publish([notice])
            await asyncio.sleep(0.05)
            return notice in followed

        await eventually(has_arrived, "what is followed all along arrives")


async def test_a_burst_needs_few_connections(topology: Topology) -> None:
    """Many messages at once go through pipelines, not through a connection for each message."""
    async with two_buses(topology.url) as (one, other):
        seen: set[int] = set()
        other.follow("run_burst", lambda message: seen.add(message.last_seq) if isinstance(message, Notice) else None)

        async def subscribed() -> bool:
            one.publish([Notice("run_burst", 0)])
            await asyncio.sleep(0.05)
            return 0 in seen

        await eventually(subscribed, "the subscription")
        for number in range(2_000):
            one.publish([Notice("run_burst", number)])
            one.ring([f"lane{number % 3}"])
        await eventually(lambda: len(seen - {-1}) == 2_000, "all of it arrives")
        nodes = [topology.primary] if isinstance(topology, Watched) else topology.nodes
        clients = [bytes(ask(node, "client", "list", "type", "normal")).decode().splitlines() for node in nodes]
        assert all(len(lines) <= 12 for lines in clients), [len(lines) for lines in clients]


@pytest.fixture
def settings(topology: Topology, sqlite_url: str) -> Settings:
    return settings_for(sqlite_url, redis_url=topology.url, redis_prefix=PREFIX, grace_seconds=0.2)


async def read_to_the_end(api: Api, run_id: str) -> list[int]:
    """Return the numbers of a run's events, by one connection that nothing may end before the run does."""
    async with api.client.stream("GET", f"{API}/runs/{run_id}/stream") as answer:
        text = "".join([piece async for piece in answer.aiter_text()])
    events = frames(text)
    assert events[-1]["type"] == "done"
    return [event["_id"] for event in events if "_id" in event]


async def test_nothing_fails_while_the_primary_changes(settings: Settings, topology: Topology) -> None:
    """A server and a worker connected by Redis alone; readers and callers notice nothing."""
    worker = Process(settings)
    worker.app.include(shop)
    await worker.start()
    try:
        async with serving(copy_of(shop, settings)) as api:
            for bus in (api.parts.connection.bus, (await worker.app.connect()).bus):
                await eventually(lambda bus=bus: bus.reaches_others, "Redis")
            long_run = (await api.run("steady", wait=False, input={"lines": 200, "pause": 0.02}))["run_id"]
            reader = asyncio.create_task(read_to_the_end(api, long_run))
            runs: list[str] = []
            fail_over(topology)
            while not topology.replica_leads() or len(runs) < 20:
                runs.append((await api.run("greet", wait=False))["run_id"])
                await asyncio.sleep(0.05)
            for run_id in runs:
                ended = await api.get(f"/runs/{run_id}/wait", params={"timeout_seconds": 60})
                assert (ended.json()["status"], ended.json()["attempt"]) == ("completed", 1)
            async with asyncio.timeout(60):
                numbers = await reader
            stored = (await api.get(f"/runs/{long_run}")).json()
            assert numbers == list(range(1, stored["last_seq"] + 1))
            await eventually(lambda: api.parts.connection.bus.reaches_others, "Redis is back")
            assert (await api.client.get("/ready")).json()["redis"] == "connected"
    finally:
        await worker.stop()
