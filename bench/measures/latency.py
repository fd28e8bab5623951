"""Latency: the time from the call that submits a run to the first line of its function, with an idle worker.

Measured from before the call, which includes the accept, and from its return. Client and worker run in one process or
in two; with two, Runlane is measured without and with Redis. The pauses between tries are random; without Redis they
are longer than the interval at which a worker without wake-ups polls, so that tries are spread over it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator

from bench import notify
from bench.measures import SYSTEMS, Sizes
from bench.process import running
from bench.samples import Sample
from bench.servers import Servers
from bench.systems import Client
from bench.systems.runlane import Runlane

_TIMEOUT_SECONDS = 60
_SYSTEMS = ("runlane", "procrastinate", "taskiq-stream")
WITH_REDIS = "two processes with Redis"


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield per repeat, system and variant the times from the call and from its return."""
    for repeat in range(sizes.repeats):
        for name in sizes.select(*_SYSTEMS):
            for sample in await _one_process(servers, name, sizes, repeat):
                yield sample
        for name in sizes.select(*_SYSTEMS):
            for sample in await _two_processes(servers, name, sizes, repeat):
                yield sample
        if sizes.select("runlane"):
            for sample in await _two_with_redis(servers, sizes, repeat):
                yield sample


async def _one_process(servers: Servers, name: str, sizes: Sizes, repeat: int) -> list[Sample]:
    with servers.workspace() as workspace:
        system = SYSTEMS[name](workspace)
        await system.prepare()
        notify.set_receiver(servers.receiver.path)
        async with system.client(with_worker=True) as client:
            return await _tries(servers, client, name, "one process", sizes.latency, repeat)


async def _two_processes(servers: Servers, name: str, sizes: Sizes, repeat: int) -> list[Sample]:
    tries = sizes.latency_polled if name == "runlane" else sizes.latency
    with servers.workspace() as workspace:
        system = SYSTEMS[name](workspace)
        await system.prepare()
        with running(system.worker(None), servers.environment(workspace), servers.log):
            async with system.client() as client:
                return await _tries(servers, client, name, "two processes", tries, repeat)


async def _two_with_redis(servers: Servers, sizes: Sizes, repeat: int) -> list[Sample]:
    with servers.workspace() as workspace:
        system = Runlane(workspace.database_url, (workspace.redis_url, workspace.queue))
        await system.prepare()
        with running(system.worker(None), servers.environment(workspace, redis=True), servers.log):
            async with system.client() as client:
                return await _tries(servers, client, system.name, WITH_REDIS, sizes.latency, repeat)


async def _tries(servers: Servers, client: Client, name: str, variant: str, tries: int, repeat: int) -> list[Sample]:
    # Connections and prepared statements exist before the first measured try.
    warm_up = min(10, tries)
    servers.receiver.clear()
    chance = random.Random(repeat)
    from_call: list[float] = []
    from_return: list[float] = []
    longest = 0.5 if name == "runlane" and variant == "two processes" else 0.05
    for key in range(warm_up + tries):
        called = time.time_ns()
        await client.accept("stamp", key)
        returned = time.time_ns()
        notification = await servers.receiver.next("started", key, _TIMEOUT_SECONDS)
        if key >= warm_up:
            from_call.append((notification.at_ns - called) / 1e6)
            from_return.append((notification.at_ns - returned) / 1e6)
        await asyncio.sleep(chance.uniform(0.01, longest))
    return [
        Sample("latency", name, variant, repeat, "ms", from_call),
        Sample("latency", name, f"{variant}, from return", repeat, "ms", from_return),
    ]
