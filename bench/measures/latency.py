"""Latency: from the call that hands a run in to the first line of its function, with an idle worker.

Counted from before the call, so that accepting is part of it, and from its return. Once with client and worker in one
process, once with the worker in its own; there Runlane once without Redis and once with it. The pauses between tries
are random; where a worker polls, they are longer than its interval, so that a try falls anywhere in it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator

from bench import note
from bench.ground import Ground
from bench.measures import SYSTEMS, Sizes
from bench.process import running
from bench.samples import Sample
from bench.systems import Client
from bench.systems.runlane import Runlane

_PATIENCE_SECONDS = 60
_SYSTEMS = ("runlane", "procrastinate", "taskiq-stream")
WITH_REDIS = "two processes with Redis"


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Per repeat, system and place of the worker: the tries from the call, and from the return."""
    for repeat in range(sizes.repeats):
        for name in sizes.among(*_SYSTEMS):
            for sample in await _one_process(ground, name, sizes, repeat):
                yield sample
        for name in sizes.among(*_SYSTEMS):
            for sample in await _two_processes(ground, name, sizes, repeat):
                yield sample
        if sizes.among("runlane"):
            for sample in await _two_with_redis(ground, sizes, repeat):
                yield sample


async def _one_process(ground: Ground, name: str, sizes: Sizes, repeat: int) -> list[Sample]:
    with ground.place() as place:
        system = SYSTEMS[name](place)
        await system.prepare()
        note.post_to(ground.mailbox.path)
        async with system.client(with_worker=True) as client:
            return await _tries(ground, client, name, "one process", sizes.latency, repeat)


async def _two_processes(ground: Ground, name: str, sizes: Sizes, repeat: int) -> list[Sample]:
    tries = sizes.latency_polled if name == "runlane" else sizes.latency
    with ground.place() as place:
        system = SYSTEMS[name](place)
        await system.prepare()
        with running(system.worker(None), ground.environment(place), ground.log):
            async with system.client() as client:
                return await _tries(ground, client, name, "two processes", tries, repeat)


async def _two_with_redis(ground: Ground, sizes: Sizes, repeat: int) -> list[Sample]:
    with ground.place() as place:
        system = Runlane(place.database_url, (place.redis_url, place.queue))
        await system.prepare()
        with running(system.worker(None), ground.environment(place, redis=True), ground.log):
            async with system.client() as client:
                return await _tries(ground, client, system.name, WITH_REDIS, sizes.latency, repeat)


async def _tries(ground: Ground, client: Client, name: str, where: str, tries: int, repeat: int) -> list[Sample]:
    # Connections and prepared statements are there before the first try that counts.
    warm_up = min(10, tries)
    ground.mailbox.empty()
    chance = random.Random(repeat)
    from_call: list[float] = []
    from_return: list[float] = []
    longest = 0.5 if name == "runlane" and where == "two processes" else 0.05
    for key in range(warm_up + tries):
        called = time.time_ns()
        await client.accept("stamp", key)
        returned = time.time_ns()
        letter = await ground.mailbox.next("started", key, _PATIENCE_SECONDS)
        if key >= warm_up:
            from_call.append((letter.at_ns - called) / 1e6)
            from_return.append((letter.at_ns - returned) / 1e6)
        await asyncio.sleep(chance.uniform(0.01, longest))
    return [
        Sample("latency", name, where, repeat, "ms", from_call),
        Sample("latency", name, f"{where}, from return", repeat, "ms", from_return),
    ]
