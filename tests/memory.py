"""Memory in tests: nodes, and the rules that hold for every memory."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from runlane.bus.memory import MemoryBus
from runlane.domain.memory import MemoryEntry, NewEntry, shard_of
from runlane.memory.opening import OpenFiles, OpenMemory, open_memory
from runlane.memory.service import MemoryService
from runlane.settings import Settings
from runlane.store.memory.words_file import WordsFile
from runlane.store.sql.database import Database, open_database
from runlane.store.sql.migrate import upgrade
from tests.harness import settings_for

TENANT = "default"


@asynccontextmanager
async def local_memory(folder: Path, **settings: Any) -> AsyncGenerator[OpenMemory]:
    """The memory of a process without Postgres."""
    path = folder / "runlane.db"
    loaded = settings_for(f"sqlite:///{path}", **{"memory_submit_seconds": 0.1, **settings})
    if not path.exists():
        await _create_database(loaded, path)
    database = await open_database(loaded)
    opened = await open_memory(loaded, database)
    try:
        yield opened
    finally:
        await opened.close()
        await database.close()


# A database of runs without content. Migrations take longer than most tests.
_migrated: list[bytes] = []


async def _create_database(settings: Settings, path: Path) -> None:
    if _migrated:
        _write(path)
        return
    await upgrade(settings)
    _keep(path)


def _keep(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    _migrated.append(path.read_bytes())


def _write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_migrated[0])


@asynccontextmanager
async def memory_node(
    url: str, path: Path, bus: MemoryBus | None = None, **settings: Any
) -> AsyncGenerator[OpenMemory]:
    """A node with a file that replicates to Postgres."""
    loaded = settings_for(url, memory_path=path, **settings)
    database = await open_database(loaded)
    opened = await open_memory(loaded, database, bus=bus)
    try:
        yield opened
    finally:
        await opened.close()
        await database.close()


@asynccontextmanager
async def direct_memory(url: str, bus: MemoryBus | None = None, **settings: Any) -> AsyncGenerator[OpenMemory]:
    """A process without a file, which commits to Postgres."""
    loaded = settings_for(url, memory_mode="direct", **settings)
    database = await open_database(loaded)
    opened = await open_memory(loaded, database, bus=bus)
    try:
        yield opened
    finally:
        await opened.close()
        await database.close()


async def new_memory(service: MemoryService, title: str = "notes") -> str:
    """Create a memory and return its id."""
    return (await service.create_memory(TENANT, title)).id


async def neighbours(service: MemoryService) -> tuple[str, str]:
    """Create memories until two of them are in the same shard, and return those."""
    by_shard: dict[int, str] = {}
    while True:
        memory_id = await new_memory(service, f"m{len(by_shard)}")
        other = by_shard.setdefault(shard_of(memory_id), memory_id)
        if other != memory_id:
            return other, memory_id


async def add(service: MemoryService, memory_id: str, *texts: str) -> list[MemoryEntry]:
    """Add entries one after another."""
    return [await service.add_entry(TENANT, memory_id, NewEntry(text)) for text in texts]


async def texts_of(service: MemoryService, memory_id: str, **options: Any) -> list[str]:
    """Return what all entries contain, oldest first."""
    found: list[str] = []
    after = 0
    while True:
        page = await service.list_entries(TENANT, memory_id, after=after, limit=500, **options)
        if not page.entries:
            return found
        found += [entry.text for entry in page.entries]
        after = page.entries[-1].seq


async def check_log(database: Database, memory_id: str) -> None:
    """Check that the numbers of the operations in a database have no gap and no repetition."""
    from sqlalchemy import text

    from runlane.store.sql.database import read
    from runlane.store.sql.statement import Statement

    ops = Statement("test_ops", text("select seq, op_id from memory_ops where memory_id = :memory order by seq"))
    head = Statement("test_head", text("select last_seq from memories where id = :memory"))
    rows = await read(database, ops, memory=memory_id)
    last = (await read(database, head, memory=memory_id))[0]["last_seq"]
    assert [row["seq"] for row in rows] == list(range(1, last + 1))
    assert len({row["op_id"] for row in rows}) == len(rows)


def connections(opened: OpenMemory) -> OpenFiles:
    """Return the connections to a memory file."""
    assert opened.files is not None
    return opened.files


async def check_index(opened: OpenMemory) -> None:
    """Compare the index of words with one that is made of the entries that exist."""
    assert opened.storage.words is not None
    await opened.storage.words.catch_up()
    words = connections(opened).words
    assert await _rows_of(words, "words.memory_words") == await _rows_of(words, "temp.expected")


async def _rows_of(words: WordsFile, table: str) -> list[tuple[Any, ...]]:
    def read() -> list[tuple[Any, ...]]:
        connection = words._open_connection()
        schema, name = table.split(".")
        if schema == "temp":
            connection.execute("drop table if exists temp.expected")
            connection.execute(
                "create virtual table temp.expected using fts5(entry, summary, memory, content='', "
                "tokenize='unicode61 remove_diacritics 2')"
            )
            connection.execute(
                "insert into temp.expected (rowid, entry, summary, memory) select rowid, text, summary, "
                "substr(memory_id, instr(memory_id, '_') + 1) from main.memory_entries where deleted_at is null"
            )
        connection.execute("drop table if exists temp.occurrences")
        connection.execute(f"create virtual table temp.occurrences using fts5vocab('{schema}', '{name}', 'instance')")
        rows = connection.execute("select term, doc, col, offset from temp.occurrences order by 1, 2, 3, 4").fetchall()
        return [tuple(row) for row in rows]

    return await words._thread.submit(read)
