"""A memory file that cannot be opened: what is damage, what is not, and what a crash leaves behind."""

from __future__ import annotations

import resource
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runlane.domain.memory import CommitState
from runlane.errors import StorageFull, Unavailable
from runlane.memory import opening
from runlane.memory.opening import open_memory
from runlane.store.memory import local_log
from runlane.store.memory.local_file import check_file
from runlane.store.memory.salvage import earlier_reports, set_aside
from runlane.store.sql.database import open_database
from tests.harness import settings_for
from tests.memory import TENANT, add, local_memory, memory_node, new_memory, texts_of


async def test_a_file_that_cannot_be_checked_is_not_set_aside(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program holds it, or the disk is full: its operations that are not replicated must not disappear."""
    path = tmp_path / "memory.db"
    async with memory_node(postgres_url, path) as node:
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "one")
    monkeypatch.setattr(opening, "check_file", partial(check_file, timeout_seconds=0.05))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("pragma locking_mode=exclusive")
        other.execute("begin exclusive")
        settings = settings_for(postgres_url, memory_path=path)
        database = await open_database(settings)
        try:
            with pytest.raises(Unavailable, match="cannot be checked"):
                await open_memory(settings, database)
        finally:
            await database.close()
    assert earlier_reports(path) == []
    async with memory_node(postgres_url, path) as node:
        assert (await node.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        assert await texts_of(node.service, memory_id) == ["one"]


async def test_a_damaged_file_stays_where_it_is_until_its_report_is_written(postgres_url: str, tmp_path: Path) -> None:
    """On a full disk, the next start would otherwise begin with an empty file and without a report."""
    path = tmp_path / "memory.db"
    async with memory_node(postgres_url, path) as node:
        await add(node.service, await new_memory(node.service), "one")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            set_aside(path, ["damaged"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert path.exists()
    moved, report = set_aside(path, ["damaged"])
    assert (moved.exists(), report.exists(), path.exists()) == (True, True, False)


async def test_a_file_is_opened_without_a_write(tmp_path: Path) -> None:
    """So it can be read while the disk is full."""
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        await add(opened.service, memory_id, "one")
        await opened.service.search(TENANT, memory_id, "one")
    async with local_memory(tmp_path) as opened:
        assert await texts_of(opened.service, memory_id) == ["one"]
        assert len(await opened.service.search(TENANT, memory_id, "one")) == 1
        for name in ("runlane-memory.db-wal", "runlane-memory.db-words-wal"):
            assert (tmp_path / name).stat().st_size == 0, name


async def test_a_node_stops_on_a_full_disk(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operations are in the database, and the file cannot note it. The next process does."""
    path = tmp_path / "memory.db"
    with monkeypatch.context() as patched:
        async with memory_node(postgres_url, path) as node:
            memory_id = await new_memory(node.service)

            async def full(*_arguments: Any) -> None:
                raise StorageFull("The disk is full.")

            patched.setattr(local_log, "mark_applied", full)
            await add(node.service, memory_id, "one")
    async with memory_node(postgres_url, path) as node:
        assert (await node.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        assert await texts_of(node.service, memory_id, consistency="committed") == ["one"]


async def test_a_copy_that_was_not_completed_leaves_the_file_at_the_next_start(
    postgres_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "memory.db"
    async with memory_node(postgres_url, path) as node:
        kept, gone = await new_memory(node.service, "kept"), await new_memory(node.service, "gone")
        for memory_id in (kept, gone):
            await add(node.service, memory_id, f"text of {memory_id}")
            await node.service.await_commit(TENANT, memory_id, 60)
    with closing(sqlite3.connect(path)) as connection, connection:
        # A copy gets its head at the end.
        connection.execute("delete from memories where id = ?", (gone,))
    async with memory_node(postgres_url, path) as node:
        assert memories_in(path) == {kept}
        assert await texts_of(node.service, kept) == [f"text of {kept}"]
        await add(node.service, gone, "later")
        assert await texts_of(node.service, gone) == [f"text of {gone}", "later"]


async def test_a_copy_of_a_memory_that_another_process_has_deleted_leaves_the_file(
    postgres_url: str, tmp_path: Path
) -> None:
    """A node keeps its copy of a memory that it has handed over."""
    path = tmp_path / "a.db"
    async with (
        memory_node(postgres_url, path) as one,
        memory_node(postgres_url, tmp_path / "b.db") as other,
    ):
        kept, gone = await new_memory(one.service, "kept"), await new_memory(one.service, "gone")
        for memory_id in (kept, gone):
            await add(one.service, memory_id, "one")
            await one.service.await_commit(TENANT, memory_id, 60)
        await other.service.delete_memory(TENANT, gone)
        assert memories_in(path) == {kept, gone}
        assert one.cleanup is not None
        await one.cleanup.clean()
        assert memories_in(path) == {kept}
        await add(one.service, kept, "two")
        assert await texts_of(one.service, kept) == ["one", "two"]


def memories_in(path: Path) -> set[str]:
    """Return the memories of which a file has anything."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            "select id from memories union select memory_id from memory_entries "
            "union select memory_id from memory_fragments union select memory_id from memory_ops"
        )
        return {row[0] for row in rows}
