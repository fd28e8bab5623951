"""Takeover: the time from SIGKILL of the worker that executes a run to the start of the run in another worker.

Every setting is the default. The time of the kill is random, so that kills are spread over the heartbeat interval. The
peers get one kill each and a timeout: a run that does not start again in time is reported as "not within".
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack

from bench.measures import SYSTEMS, Sizes
from bench.process import WorkerProcess, running
from bench.samples import Sample
from bench.servers import Servers, Workspace, wait_for_rows

KILL = "kill -9"
_TIMEOUT_SECONDS = 60
_ONLINE = "select count(*) as n from workers where status = 'online' and lease_until > extract(epoch from now()) * 1e6"


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield one sample with every kill for Runlane, and one for each peer."""
    yield await _kills(servers, sizes.kills)
    for name in sizes.select("procrastinate", "taskiq-stream"):
        yield await _one_kill(servers, name, sizes.peer_timeout_seconds)


async def _kills(servers: Servers, kills: int) -> Sample:
    with servers.workspace() as workspace:
        system = SYSTEMS["runlane"](workspace)
        await system.prepare()
        async with system.client() as client:
            command, environment = system.worker(None), servers.environment(workspace)
            seconds = await takeover_seconds(
                servers, workspace, command, environment, lambda key: client.accept("hold", key), kills
            )
    return Sample("takeover", "runlane", KILL, 0, "s", seconds)


async def takeover_seconds(
    servers: Servers,
    workspace: Workspace,
    command: Sequence[str],
    environment: Mapping[str, str],
    accept: Callable[[int], Awaitable[None]],
    kills: int,
) -> list[float]:
    """Return the times of takeovers between two workers with this command. `accept` starts the run with a key."""
    chance = random.Random(kills)
    seconds: list[float] = []
    with ExitStack() as stack:
        workers: dict[int, WorkerProcess] = {}

        async def start_workers() -> None:
            while len(workers) < 2:
                worker = stack.enter_context(running(command, environment, servers.log))
                workers[worker.pid] = worker
            await wait_for_rows(workspace.database_url, _ONLINE, 2, _TIMEOUT_SECONDS)

        for key in range(kills):
            await start_workers()
            servers.receiver.clear()
            await accept(key)
            before = await servers.receiver.next("started", key, _TIMEOUT_SECONDS)
            await asyncio.sleep(chance.uniform(0.1, 1.1))
            killed = time.time_ns()
            os.kill(before.pid, signal.SIGKILL)
            after = await servers.receiver.next("started", key, _TIMEOUT_SECONDS)
            if after.pid == before.pid:
                raise RuntimeError(f"run {key} started again in the process that was killed")
            seconds.append((after.at_ns - killed) / 1e9)
            workers.pop(before.pid).stop()
    return seconds


async def _one_kill(servers: Servers, name: str, timeout_seconds: float) -> Sample:
    with servers.workspace() as workspace:
        system = SYSTEMS[name](workspace)
        await system.prepare()
        environment = servers.environment(workspace)
        servers.receiver.clear()
        with (
            running(system.worker(None), environment, servers.log),
            running(system.worker(None), environment, servers.log),
        ):
            async with system.client() as client:
                await client.accept("hold", 0)
                before = await servers.receiver.next("started", 0, _TIMEOUT_SECONDS)
                killed = time.time_ns()
                os.kill(before.pid, signal.SIGKILL)
                try:
                    after = await servers.receiver.next("started", 0, timeout_seconds)
                except TimeoutError:
                    return Sample("takeover", name, KILL, 0, "s", [], remark=f"not within {timeout_seconds:g} s")
                return Sample("takeover", name, KILL, 0, "s", [(after.at_ns - killed) / 1e9])
