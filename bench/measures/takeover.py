"""Takeover: SIGKILL to the worker that executes a run, until the same run starts in the worker beside it.

Every setting is the default. The moment of the kill is random, so that it falls anywhere between two heartbeats. The
peers get one kill each and a bounded wait: what does not come back in it is reported as "not within".
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack

from bench.ground import Ground, wait_for_rows
from bench.measures import SYSTEMS, Sizes
from bench.process import WorkerProcess, running
from bench.samples import Sample

_PATIENCE_SECONDS = 60
_ONLINE = "select count(*) as n from workers where status = 'online' and lease_until > extract(epoch from now()) * 1e6"


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """One sample with every kill for Runlane, one for each peer."""
    yield await _kills(ground, sizes.kills)
    for name in sizes.among("procrastinate", "taskiq-stream"):
        yield await _one_kill(ground, name, sizes.peer_patience_seconds)


async def _kills(ground: Ground, kills: int) -> Sample:
    chance = random.Random(kills)
    seconds: list[float] = []
    with ground.place() as place, ExitStack() as stack:
        system = SYSTEMS["runlane"](place)
        await system.prepare()
        environment = ground.environment(place)
        workers: dict[int, WorkerProcess] = {}

        async def bring_up() -> None:
            while len(workers) < 2:
                worker = stack.enter_context(running(system.worker(None), environment, ground.log))
                workers[worker.pid] = worker
            await wait_for_rows(place.database_url, _ONLINE, 2, _PATIENCE_SECONDS)

        async with system.client() as client:
            for key in range(kills):
                await bring_up()
                ground.mailbox.empty()
                await client.accept("hold", key)
                before = await ground.mailbox.next("started", key, _PATIENCE_SECONDS)
                await asyncio.sleep(chance.uniform(0.1, 1.1))
                killed = time.time_ns()
                os.kill(before.pid, signal.SIGKILL)
                after = await ground.mailbox.next("started", key, _PATIENCE_SECONDS)
                if after.pid == before.pid:
                    raise RuntimeError(f"run {key} started again in the process that was killed")
                seconds.append((after.at_ns - killed) / 1e9)
                workers.pop(before.pid).stop()
    return Sample("takeover", "runlane", "kill -9", 0, "s", seconds)


async def _one_kill(ground: Ground, name: str, patience_seconds: float) -> Sample:
    with ground.place() as place:
        system = SYSTEMS[name](place)
        await system.prepare()
        environment = ground.environment(place)
        ground.mailbox.empty()
        with (
            running(system.worker(None), environment, ground.log),
            running(system.worker(None), environment, ground.log),
        ):
            async with system.client() as client:
                await client.accept("hold", 0)
                before = await ground.mailbox.next("started", 0, _PATIENCE_SECONDS)
                killed = time.time_ns()
                os.kill(before.pid, signal.SIGKILL)
                try:
                    after = await ground.mailbox.next("started", 0, patience_seconds)
                except TimeoutError:
                    return Sample("takeover", name, "kill -9", 0, "s", [], remark=f"not within {patience_seconds:g} s")
                return Sample("takeover", name, "kill -9", 0, "s", [(after.at_ns - killed) / 1e9])
