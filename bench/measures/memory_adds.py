"""Memory: acknowledged adds per second over 256 memories, their latency at half that load, ordered reads, replication.

Beside it, in the same run: a plain loop that inserts rows into a SQLite file with synchronous=FULL, and one into
Postgres, one commit per row. Both keep no order, no log and no words for search.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import asyncpg

from bench.measures import Sizes
from bench.samples import Sample
from bench.servers import Servers
from runlane.domain.memory import CommitState, NewEntry
from runlane.memory.opening import OpenMemory, open_memory
from runlane.settings import load_settings
from runlane.store.sql.database import open_database
from runlane.store.sql.migrate import upgrade

_MEASURE: Final = "memory_adds"
_TENANT: Final = "default"
_TEXT: Final = "The quick brown fox jumps over the lazy dog, and the reader remembers that it was number {}."
_CALLERS: Final = 512
_ENTRIES: Final = 10


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield throughput, latency at half of it, reads, replication, and the plain loops."""
    for repeat in range(sizes.repeats):
        async for sample in _runlane(servers, sizes, repeat):
            yield sample
        with tempfile.TemporaryDirectory() as folder:
            rate = _plain_sqlite(Path(folder) / "plain.db", sizes.memory_plain_adds)
        yield Sample(_MEASURE, "sqlite", "plain insert loop", repeat, "adds/s", [rate])
        with servers.workspace() as workspace:
            rate = await _plain_postgres(workspace.database_url, sizes.memory_plain_adds)
        yield Sample(_MEASURE, "postgres", "plain insert loop", repeat, "adds/s", [rate])


async def _runlane(servers: Servers, sizes: Sizes, repeat: int) -> AsyncGenerator[Sample]:
    with servers.workspace() as workspace:
        async with _node(workspace.database_url) as opened:
            ids = [(await opened.service.create_memory(_TENANT, f"m{n}")).id for n in range(sizes.memories)]
            for memory_id in ids:
                await opened.service.add_entry(_TENANT, memory_id, NewEntry("first"))
            for entries, name in ((1, "adds"), (_ENTRIES, f"adds, {_ENTRIES} entries per call")):
                began, busy = time.perf_counter(), time.process_time()
                rate = await _adds(opened, ids, sizes.memory_adds, entries)
                yield Sample(_MEASURE, "runlane", name, repeat, "adds/s", [rate])
                await _replicated(opened, ids)
                replicated = sizes.memory_adds / (time.perf_counter() - began)
                yield Sample(_MEASURE, "runlane", f"{name}, until replicated", repeat, "ops/s", [replicated])
                cost = (time.process_time() - busy) * 1_000_000 / sizes.memory_adds
                yield Sample(_MEASURE, "runlane", f"{name}, CPU of the process", repeat, "us", [cost])
            backlog = await _backlog(opened, ids, sizes)
            yield Sample(_MEASURE, "runlane", "replication alone", repeat, "ops/s", [backlog])
            rate = await _adds(opened, ids, sizes.memory_adds // 4, 1)
            await _replicated(opened, ids)
            latencies = await _paced(opened, ids, rate / 2, sizes.memory_adds // 4)
            yield Sample(_MEASURE, "runlane", "latency at half load", repeat, "ms", latencies)
            reads: list[float] = []
            for number in range(min(1000, sizes.memory_adds)):
                started = time.perf_counter()
                await opened.service.list_entries(_TENANT, ids[number % len(ids)])
                reads.append((time.perf_counter() - started) * 1000)
            yield Sample(_MEASURE, "runlane", "ordered read", repeat, "ms", reads)


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


async def _adds(opened: OpenMemory, ids: list[str], count: int, entries: int) -> float:
    """Return the acknowledged entries per second of many callers that each wait for their acknowledgement."""
    share = max(1, count // (_CALLERS * entries))

    async def caller(number: int) -> None:
        memory_id = ids[number % len(ids)]
        for index in range(share):
            new = [NewEntry(_TEXT.format(index * entries + position)) for position in range(entries)]
            await opened.service.add_entries(_TENANT, memory_id, new)

    started = time.perf_counter()
    await asyncio.gather(*(caller(number) for number in range(_CALLERS)))
    return share * _CALLERS * entries / (time.perf_counter() - started)


async def _replicated(opened: OpenMemory, ids: list[str]) -> None:
    for memory_id in ids:
        done = await opened.service.await_commit(_TENANT, memory_id, 600)
        assert done.state is CommitState.COMMITTED


async def _backlog(opened: OpenMemory, ids: list[str], sizes: Sizes) -> float:
    """Return the operations per second that are replicated from a backlog, while nothing else happens."""
    assert opened.replicator is not None
    await opened.replicator.stop(60)
    await _adds(opened, ids, sizes.memory_adds, _ENTRIES)
    started = time.perf_counter()
    opened.replicator.start()
    await _replicated(opened, ids)
    return sizes.memory_adds / (time.perf_counter() - started)


async def _paced(opened: OpenMemory, ids: list[str], per_second: float, count: int) -> list[float]:
    """Return the latencies of adds that arrive at a steady rate, in milliseconds."""
    latencies: list[float] = []

    async def one(number: int, due: float) -> None:
        await opened.service.add_entry(_TENANT, ids[number % len(ids)], NewEntry(_TEXT.format(number)))
        latencies.append((time.perf_counter() - due) * 1000)

    began = time.perf_counter()
    tasks: list[asyncio.Task[None]] = []
    for number in range(count):
        due = began + number / per_second
        if due > time.perf_counter():
            await asyncio.sleep(due - time.perf_counter())
        tasks.append(asyncio.create_task(one(number, due)))
    await asyncio.gather(*tasks)
    return latencies


def _plain_sqlite(path: Path, count: int) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute("create table entries (id integer primary key, memory text, text text)")
    started = time.perf_counter()
    for number in range(count):
        connection.execute("insert into entries (memory, text) values ('m', ?)", (_TEXT.format(number),))
    seconds = time.perf_counter() - started
    connection.close()
    return count / seconds


async def _plain_postgres(url: str, count: int) -> float:
    connection = await cast("Any", asyncpg).connect(url)
    try:
        await connection.execute("create table entries (id bigserial primary key, memory text, text text)")
        insert = await connection.prepare("insert into entries (memory, text) values ('m', $1)")
        started = time.perf_counter()
        for number in range(count):
            await insert.fetch(_TEXT.format(number))
        return count / (time.perf_counter() - started)
    finally:
        await connection.close()
