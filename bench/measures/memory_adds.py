"""Memory: acknowledged adds per second over 256 memories, their latency at half that load, ordered reads, replication.

The node is a process of its own. Adds are measured twice: while replication is paused, and beside it, with Postgres on
the same processors; latencies also while Postgres is away. Beside them, in the same run: a plain loop that inserts rows
into a SQLite file with synchronous=FULL, and one into Postgres, one commit per row. Both keep no order, no log and no
words for search.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final, cast

import asyncpg

from bench.measures import Sizes
from bench.process import clean_environment, run_json_program
from bench.samples import Sample
from bench.servers import Servers
from bench.systems.memory_node import TEXT

_MEASURE: Final = "memory_adds"
_TIMEOUT_SECONDS: Final = 1800.0


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
        numbers = (sizes.memories, sizes.memory_adds, sizes.memory_away_seconds)
        arguments = [workspace.database_url, *(str(number) for number in numbers)]
        figures = await run_json_program(
            ["-m", "bench.systems.memory_node", *arguments], clean_environment({}), servers.log, _TIMEOUT_SECONDS
        )
    for variant, unit, values in figures:
        yield Sample(_MEASURE, "runlane", variant, repeat, unit, values)


def _plain_sqlite(path: Path, count: int) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute("create table entries (id integer primary key, memory text, text text)")
    started = time.perf_counter()
    for number in range(count):
        connection.execute("insert into entries (memory, text) values ('m', ?)", (TEXT.format(number),))
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
            await insert.fetch(TEXT.format(number))
        return count / (time.perf_counter() - started)
    finally:
        await connection.close()
