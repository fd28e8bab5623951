"""Permits: how many model calls per second one credential's limit lets begin, counted by the database.

Each process has a limiter of its own, as a worker does. A permit is a grant and its release. The waiting time is the
time of a grant while the limit is free; beside it, as a yardstick, a bare transaction with as many round trips. The
share is the part of a limit that is in use while callers wait for it.

As a program (`python -m bench.measures.permits SECONDS CALLERS CALL_SECONDS`): one such process. It prints a line when
it is ready, reads from its input when the measured time starts, in seconds since the epoch, and prints what it did as
JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import asyncpg
import orjson

from bench.measures import SYSTEMS, Sizes
from bench.process import ROOT
from bench.samples import Sample
from bench.servers import Servers, Workspace
from runlane.domain.rate_limit import LimitChange
from runlane.rate_limits.limiter import ClusterLimiter
from runlane.settings import load_settings
from runlane.store.rate_limits.limits import set_limits
from runlane.store.sql.database import open_database

PROCESSES = (1, 4)
USED = "share of a limit of 2"
BARE = "bare transaction"
_CREDENTIAL = "acme"
_FREE = 10_000
# Calls begin before the measured time, so that connections and statements are ready in it.
_WARM_UP_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0
_CALLERS = 16
# A caller makes about 50 calls per second: far from the most that is possible, as with real model calls.
_CALL_SECONDS = 0.02


def rate(processes: int) -> str:
    """The variant that measures permits per second."""
    return f"permits, {processes} processes"


def wait(processes: int) -> str:
    """The variant that measures the waiting time."""
    return f"wait, {processes} processes"


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Per repeat: permits per second and waiting times by the number of processes, and the share of a limit in use."""
    if not sizes.select("runlane"):
        return
    seconds = sizes.permit_seconds
    for repeat in range(sizes.repeats):
        for processes in PROCESSES:
            done = await _run(servers, _FREE, processes, _Load(seconds, _CALLERS, 0.0))
            permits = sum(len(calls.waits_ms) for calls in done)
            yield Sample("permits", "runlane", rate(processes), repeat, "permits/s", [permits / seconds])
            done = await _run(servers, _FREE, processes, _Load(seconds, 1, _CALL_SECONDS))
            waits = [waited for calls in done for waited in calls.waits_ms]
            yield Sample("permits", "runlane", wait(processes), repeat, "ms", waits)
        yield Sample("permits", "postgres", BARE, repeat, "ms", await _bare(servers, seconds))
        done = await _run(servers, 2, 3, _Load(seconds, 4, 0.5))
        used = sum(calls.held_seconds for calls in done) / (2 * seconds)
        yield Sample("permits", "runlane", USED, repeat, "share", [used])


@dataclass(frozen=True, slots=True)
class _Load:
    seconds: float
    callers: int
    call_seconds: float


@dataclass(slots=True)
class _Calls:
    """What one process did within the measured time."""

    waits_ms: list[float] = field(default_factory=list[float])
    held_seconds: float = 0.0


async def _run(servers: Servers, in_flight: int, processes: int, load: _Load) -> list[_Calls]:
    with servers.workspace() as workspace:
        await SYSTEMS["runlane"](workspace).prepare()
        await _limit(workspace, in_flight)
        await servers.checkpoint()
        async with contextlib.AsyncExitStack() as stack:
            started = [await stack.enter_async_context(_started(servers, workspace, load)) for _ in range(processes)]
            async with asyncio.timeout(load.seconds + _PATIENCE_SECONDS):
                for process in started:
                    await _reader(process).readline()
                start = time.time() + _WARM_UP_SECONDS
                answers = await asyncio.gather(*(process.communicate(f"{start}\n".encode()) for process in started))
    return [_Calls(**orjson.loads(answer)) for answer, _ in answers]


@contextlib.asynccontextmanager
async def _started(servers: Servers, workspace: Workspace, load: _Load) -> AsyncGenerator[asyncio.subprocess.Process]:
    words = (str(load.seconds), str(load.callers), str(load.call_seconds))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bench.measures.permits", *words),
        cwd=ROOT,
        env=servers.environment(workspace),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=servers.log,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _reader(process: asyncio.subprocess.Process) -> asyncio.StreamReader:
    assert process.stdout is not None
    return process.stdout


async def _bare(servers: Servers, seconds: float) -> list[float]:
    """The times of transactions with the round trips of a grant, at the same rate, on one connection."""
    times: list[float] = []
    with servers.workspace() as workspace:
        connection = await cast("Any", asyncpg).connect(workspace.database_url)
        try:
            await connection.execute("create table permits (id bigint)")
            end = time.perf_counter() + seconds
            while (began := time.perf_counter()) < end:
                await connection.execute("begin")
                await connection.fetch("select pg_advisory_xact_lock($1)", 1)
                await connection.fetch("select count(*) from permits where id = $1", -1)
                await connection.execute("insert into permits values ($1)", 1)
                await connection.execute("commit")
                times.append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(_CALL_SECONDS)
        finally:
            await connection.close()
    return times


async def _limit(workspace: Workspace, in_flight: int) -> None:
    database = await open_database(load_settings(database_url=workspace.database_url))
    try:
        await set_limits(database, _CREDENTIAL, LimitChange(in_flight=in_flight), actor="bench")
    finally:
        await database.close()


async def _silent(reason: str) -> None: ...


async def _call(limiter: ClusterLimiter, start: float, load: _Load, calls: _Calls) -> None:
    """Make calls until the time is over; only what lies within it counts."""
    end = start + load.seconds
    while (asked := time.time()) < end:
        slot = await limiter.acquire(_CREDENTIAL, tokens=10, timeout_seconds=60, on_wait=_silent)
        granted = time.time()
        await asyncio.sleep(load.call_seconds)
        calls.held_seconds += max(0.0, min(time.time(), end) - max(granted, start))
        await slot.release(10)
        if asked >= start and time.time() <= end:
            calls.waits_ms.append((granted - asked) * 1000)


async def _main(load: _Load) -> None:
    settings = load_settings()
    database = await open_database(settings)
    limiter = ClusterLimiter(database)
    calls = _Calls()
    try:
        print("ready", flush=True)
        start = float(sys.stdin.readline())
        await asyncio.gather(*(_call(limiter, start, load, calls) for _ in range(load.callers)))
    finally:
        await limiter.close()
        await database.close()
    print(orjson.dumps(asdict(calls)).decode())


if __name__ == "__main__":
    asyncio.run(_main(_Load(float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
