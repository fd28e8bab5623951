"""Memory: one search by meaning among many vectors of one memory, in a file and in Postgres, with and without numpy.

Beside it, in the same run: the same search by pgvector in a column of its type, without an index, if the server has it.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path
from typing import Any, Final, cast

import asyncpg

from bench.measures import Sizes
from bench.samples import Sample
from bench.servers import Servers
from runlane.settings import load_settings
from runlane.store.memory import similarity, vectors
from runlane.store.memory.local_file import LocalFile
from runlane.store.sql.database import Database, open_database
from runlane.store.sql.migrate import upgrade

_MEASURE: Final = "memory_search"
_MEMORY: Final = "mem_search"
_DIMENSIONS: Final = 768
# Distinct vectors; making them takes longer than searching.
_DISTINCT: Final = 2000
_LIMIT: Final = 50
_SEARCHES: Final = 3
_ENTRY_COLUMNS: Final = ["id", "memory_id", "seq", "changed_seq", "text", "summary", "metadata", "tags", "created_at"]
_VECTOR_COLUMNS: Final = ["entry_id", "memory_id", "seq", "vector"]


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield the seconds of a search."""
    chance = random.Random(1)
    distinct = [[chance.gauss(0, 1) for _ in range(_DIMENSIONS)] for _ in range(_DISTINCT)]
    query = [chance.gauss(0, 1) for _ in range(_DIMENSIONS)]
    for repeat in range(sizes.repeats):
        with tempfile.TemporaryDirectory() as folder:
            file = await LocalFile.open_writer(Path(folder) / "memory.db", 60, "normal")
            _fill_file(file.path, distinct, sizes.memory_vectors)
            async for name, seconds in _searches(file, query, sizes):
                yield Sample(_MEASURE, "sqlite", name, repeat, "s", seconds)
            await file.close()
        with servers.workspace() as workspace:
            settings = load_settings(database_url=workspace.database_url)
            await upgrade(settings)
            await _fill_postgres(workspace.database_url, distinct, sizes.memory_vectors)
            database = await open_database(settings)
            async for name, seconds in _searches(database, query, sizes):
                yield Sample(_MEASURE, "postgres", name, repeat, "s", seconds)
            await database.close()
            seconds = await _pgvector(workspace.database_url, distinct, query, sizes.memory_vectors)
            yield Sample(_MEASURE, "postgres", "pgvector, no index", repeat, "s", seconds)


async def _searches(database: Database, query: list[float], sizes: Sizes) -> AsyncGenerator[tuple[str, list[float]]]:
    found: dict[str, list[str]] = {}
    for name, numpy in (("numpy", similarity.find_numpy()), ("without numpy", None)):
        with (
            _replaced(vectors, "MAX_SCANNED", sizes.memory_vectors),
            _replaced(similarity, "find_numpy", lambda n=numpy: n),
        ):
            seconds: list[float] = []
            for _ in range(_SEARCHES):
                started = time.perf_counter()
                found[name] = await vectors.nearest_entries(database, _MEMORY, query, _LIMIT)
                seconds.append(time.perf_counter() - started)
        yield name, seconds
    assert found["numpy"] == found["without numpy"]


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Generator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _entries(count: int) -> Iterator[tuple[Any, ...]]:
    for seq in range(1, count + 1):
        yield f"entry_{seq:032}", _MEMORY, seq, seq, f"entry {seq}", "", "{}", "{}", seq


def _vectors(distinct: list[list[float]], count: int) -> Iterator[tuple[Any, ...]]:
    packed = [vectors.pack_unit(vector) for vector in distinct]
    for seq in range(1, count + 1):
        yield f"entry_{seq:032}", _MEMORY, seq, packed[seq * 7 % len(packed)]


def _fill_file(path: Path, distinct: list[list[float]], count: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for table, columns, rows in (
            ("memory_entries", _ENTRY_COLUMNS, _entries(count)),
            ("memory_vectors", _VECTOR_COLUMNS, _vectors(distinct, count)),
        ):
            marks = ", ".join("?" * len(columns))
            connection.executemany(f"insert into {table} ({', '.join(columns)}) values ({marks})", rows)


async def _fill_postgres(url: str, distinct: list[list[float]], count: int) -> None:
    connection = await cast("Any", asyncpg).connect(url)
    await connection.copy_records_to_table("memory_entries", records=_entries(count), columns=_ENTRY_COLUMNS)
    await connection.copy_records_to_table("memory_vectors", records=_vectors(distinct, count), columns=_VECTOR_COLUMNS)
    await connection.execute("vacuum analyze memory_entries, memory_vectors")
    await connection.close()


async def _pgvector(url: str, distinct: list[list[float]], query: list[float], count: int) -> list[float]:
    connection = await cast("Any", asyncpg).connect(url)
    seconds: list[float] = []
    try:
        await connection.execute(f"create extension vector; create table near (seq bigint, v vector({_DIMENSIONS}))")
        await connection.execute(f"create table d (n int, v vector({_DIMENSIONS}))")
        await connection.executemany(
            "insert into d values ($1, $2::text::vector)", [(n, str(v)) for n, v in enumerate(distinct)]
        )
        await connection.execute(
            f"insert into near select s, d.v from generate_series(1, {count}) s join d on d.n = s * 7 % {len(distinct)}"
        )
        await connection.execute("vacuum analyze near")
        for _ in range(_SEARCHES):
            started = time.perf_counter()
            await connection.fetch("select seq from near order by v <=> $1::text::vector limit 50", str(query))
            seconds.append(time.perf_counter() - started)
    finally:
        await connection.close()
    return seconds
