"""A memory node in a process of its own, with the event loop and the garbage collector of `runlane serve`.

Usage: python -m bench.systems.memory_node DATABASE_URL MEMORIES ADDS AWAY_SECONDS. Prints a list of [variant, unit,
values] as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit, urlunsplit

import orjson
import structlog
import uvloop

from bench.http_client import HOST
from bench.relay import Relay
from runlane.cli import GC_THRESHOLDS
from runlane.domain.ids import new_id
from runlane.domain.memory import CommitState, NewEntry
from runlane.errors import MemoryBusy
from runlane.memory.opening import OpenMemory, open_memory
from runlane.settings import load_settings
from runlane.store.sql.database import open_database
from runlane.store.sql.migrate import upgrade

TEXT: Final = "The quick brown fox jumps over the lazy dog, and the reader remembers that it was number {}."
PAUSED: Final = ", replication paused"
# The control beside a figure: wake-ups that were late, and writes that waited for the disk.
LATE: Final = ", control, late wake-up"
DISK: Final = ", control, disk"
# With Postgres and without it, each beside the control.
STEADY_LOAD: Final = 1_000
HERE: Final = f"latency at {STEADY_LOAD:,} entries/s, Postgres available"
AWAY: Final = f"latency at {STEADY_LOAD:,} entries/s, Postgres away"
DRAIN: Final = "Postgres away, until its operations are replicated"
# Half of the goal, in entries per second.
HALF_LOAD: Final = 10_000
_TENANT: Final = "default"
_CALLERS: Final = 512
_ENTRIES: Final = 10
_STOP_SECONDS: Final = 60.0

Figure = tuple[str, str, list[float]]


class _Measured:
    """The measurements of one node, in their order."""

    def __init__(self, opened: OpenMemory, ids: list[str], count: int) -> None:
        assert opened.replicator is not None
        assert opened.files is not None
        self._service = opened.service
        self._replicator = opened.replicator
        self._file = opened.files.writer.path
        self._ids = ids
        self._count = count
        self.figures: list[Figure] = []

    @classmethod
    async def of(cls, opened: OpenMemory, memories: int, count: int) -> Self:
        """Create the memories, each with one entry."""
        titles = [new_id("m").replace("_", "-") for _ in range(memories)]
        ids = [(await opened.service.create_memory(_TENANT, title)).id for title in titles]
        for memory_id in ids:
            await opened.service.add_entry(_TENANT, memory_id, NewEntry("first"))
        return cls(opened, ids, count)

    async def away(self, relay: Relay, seconds: float) -> None:
        """Measure latencies with Postgres, then without it, and how long the log drains afterwards."""
        count = round(STEADY_LOAD * seconds)
        async with self._control(HERE):
            await self._paced(HERE, STEADY_LOAD, 1, count)
        await self._replicated()
        relay.leave()
        async with self._control(AWAY):
            await self._paced(AWAY, STEADY_LOAD, 1, count)
        relay.come_back()
        began = time.perf_counter()
        await self._replicated()
        self._figure(DRAIN, "s", time.perf_counter() - began)

    async def measure(self) -> list[Figure]:
        """Return all figures."""
        await self._replicated()
        for entries, name in ((1, "adds"), (_ENTRIES, f"adds, {_ENTRIES} entries per call")):
            await self._alone(name, entries)
            await self._beside(name, entries)
        await self._backlog()
        rate = await self._adds(self._count // 4, 1)
        await self._replicated()
        await self._paced("latency at half load", rate / 2, 1, self._count // 4)
        name = f"latency at {HALF_LOAD:,} entries/s, {_ENTRIES} per call"
        await self._replicator.stop(_STOP_SECONDS)
        async with self._control(name + PAUSED):
            await self._paced(name + PAUSED, HALF_LOAD, _ENTRIES, self._count)
        self._replicator.start()
        await self._replicated()
        await self._paced(name, HALF_LOAD, _ENTRIES, self._count // 4)
        await self._replicated()
        await self._reads()
        return self.figures

    async def _alone(self, name: str, entries: int) -> None:
        """Measure what a node acknowledges while Postgres takes nothing of the processors."""
        await self._replicator.stop(_STOP_SECONDS)
        busy = time.process_time()
        self._figure(name + PAUSED, "adds/s", await self._adds(self._count, entries))
        self._figure(f"{name}{PAUSED}, CPU of the process", "us", self._cpu_since(busy))
        self._replicator.start()
        await self._replicated()

    async def _beside(self, name: str, entries: int) -> None:
        """Measure what it acknowledges beside its replication, and until when all of it is in Postgres."""
        began, busy = time.perf_counter(), time.process_time()
        self._figure(name, "adds/s", await self._adds(self._count, entries))
        await self._replicated()
        self._figure(f"{name}, until replicated", "ops/s", self._count / (time.perf_counter() - began))
        self._figure(f"{name}, CPU of the process", "us", self._cpu_since(busy))

    async def _backlog(self) -> None:
        """Measure how many operations per second are replicated from a backlog, while nothing else happens."""
        await self._replicator.stop(_STOP_SECONDS)
        await self._adds(self._count, _ENTRIES)
        started = time.perf_counter()
        self._replicator.start()
        await self._replicated()
        self._figure("replication alone", "ops/s", self._count / (time.perf_counter() - started))

    async def _adds(self, count: int, entries: int) -> float:
        """Return the acknowledged entries per second of many callers that each wait for their acknowledgement."""
        share = max(1, count // (_CALLERS * entries))

        async def caller(number: int) -> None:
            memory_id = self._ids[number % len(self._ids)]
            for index in range(share):
                new = [NewEntry(TEXT.format(index * entries + position)) for position in range(entries)]
                await self._service.add_entries(_TENANT, memory_id, new)

        started = time.perf_counter()
        await asyncio.gather(*(caller(number) for number in range(_CALLERS)))
        return share * _CALLERS * entries / (time.perf_counter() - started)

    async def _paced(self, name: str, per_second: float, entries: int, count: int) -> None:
        """Measure the latencies of calls that arrive at a steady rate; an overloaded node refuses some."""
        latencies: list[float] = []
        refused: list[float] = []
        tasks: set[asyncio.Task[None]] = set()

        async def one(number: int, due: float) -> None:
            new = [NewEntry(TEXT.format(number + position)) for position in range(entries)]
            try:
                await self._service.add_entries(_TENANT, self._ids[number % len(self._ids)], new)
            except MemoryBusy:
                refused.append(1)
            else:
                latencies.append((time.perf_counter() - due) * 1000)

        began = time.perf_counter()
        for number in range(max(1, count // entries)):
            due = began + number * entries / per_second
            if due > time.perf_counter():
                await asyncio.sleep(due - time.perf_counter())
            task = asyncio.create_task(one(number, due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        self._figure(name, "ms", *latencies)
        if refused:
            self._figure(f"{name}, refused", "calls", sum(refused))

    @asynccontextmanager
    async def _control(self, name: str) -> AsyncGenerator[None]:
        """Measure beside it what the machine does to a process that does almost nothing, on the same disk."""
        file = f"{self._file}-control"
        command = (sys.executable, "-m", "bench.systems.machine_control", file)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        assert process.stdout is not None
        await process.stdout.readline()
        try:
            yield
        finally:
            output, _ = await process.communicate(b"")  # which closes its input
        late, took = orjson.loads(output)
        self._figure(f"{name}{LATE}", "ms", *late)
        self._figure(f"{name}{DISK}", "ms", *took)

    async def _reads(self) -> None:
        reads: list[float] = []
        for number in range(min(1000, self._count)):
            started = time.perf_counter()
            await self._service.list_entries(_TENANT, self._ids[number % len(self._ids)])
            reads.append((time.perf_counter() - started) * 1000)
        self._figure("ordered read", "ms", *reads)

    async def _replicated(self) -> None:
        for memory_id in self._ids:
            done = await self._service.await_commit(_TENANT, memory_id, 600)
            assert done.state is CommitState.COMMITTED

    def _cpu_since(self, busy: float) -> float:
        return (time.process_time() - busy) * 1_000_000 / self._count

    def _figure(self, name: str, unit: str, *values: float) -> None:
        self.figures.append((name, unit, list(values)))


@asynccontextmanager
async def _node(url: str) -> AsyncGenerator[OpenMemory]:
    folder = tempfile.mkdtemp()
    settings = load_settings(database_url=url, memory_path=Path(folder) / "memory.db", worker_health_port=0)
    await upgrade(settings)
    database = await open_database(settings)
    opened = await open_memory(settings, database)
    try:
        yield opened
    finally:
        await opened.close()
        await database.close()
        await asyncio.to_thread(shutil.rmtree, folder)


async def _measure(url: str, memories: int, count: int, away_seconds: float) -> list[Figure]:
    parts = urlsplit(url)
    async with Relay.to(parts.port or 5432) as relay:
        relayed = urlunsplit(parts._replace(netloc=f"{parts.username}@{HOST}:{relay.port}"))
        async with _node(relayed) as opened:
            away = await _Measured.of(opened, memories, count)
            await away.away(relay, away_seconds)
    async with _node(url) as opened:
        measured = await _Measured.of(opened, memories, count)
        return [*await measured.measure(), *away.figures]


def main() -> None:
    url, memories, count, away_seconds = sys.argv[1:]
    # What the node logs while Postgres is away must not be in the result.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()
    figures = uvloop.run(_measure(url, int(memories), int(count), float(away_seconds)))
    sys.stdout.buffer.write(orjson.dumps(figures))


if __name__ == "__main__":
    main()
