"""The upkeep of a memory file: what SQLite would do in a commit is done beside the writer."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from runlane.domain.memory import NewEntry
from runlane.memory.opening import OpenMemory
from runlane.memory.upkeep import FileUpkeep
from runlane.store.memory.local_file import LocalFile
from tests.harness import eventually
from tests.memory import TENANT, add, local_memory, new_memory

# More commits than the parts that SQLite merges by default, of one size and of two sizes.
COMMITS = 300


def read(opened: OpenMemory, query: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(opened.files[0].path)) as connection:
        return connection.execute(query).fetchall()


def parts_of(opened: OpenMemory) -> int:
    """Return how many parts the index of words has."""
    return read(opened, "select count(distinct segid) from memory_words_idx")[0][0]


async def without_upkeep(opened: OpenMemory) -> LocalFile:
    assert opened.upkeep is not None
    await opened.upkeep.stop()
    return opened.files[0]


async def add_many(opened: OpenMemory, memory_id: str, count: int) -> None:
    await add(opened.service, memory_id, *(f"number {number} of many" for number in range(count)))


async def test_a_commit_does_not_merge_the_index_of_words(tmp_path: Path) -> None:
    async with local_memory(tmp_path, memory_synchronous="normal") as opened:
        file = await without_upkeep(opened)
        memory_id = await new_memory(opened.service)
        for number in range(40):
            words = " ".join(f"w{number * 1000 + position}" for position in range(1000))
            await add(opened.service, memory_id, f"many {words}")
        assert parts_of(opened) == 40
        steps = 0
        while await file.merge_words():
            steps += 1
        assert steps > 4, "a step is small"
        assert parts_of(opened) < 8
        assert len(await opened.service.search(TENANT, memory_id, "many", limit=50)) == 40
        found = await opened.service.search(TENANT, memory_id, "w39999")
        assert [hit.entry.text[-6:] for hit in found] == ["w39999"]


async def test_commits_merge_the_index_if_the_upkeep_does_not_keep_up(tmp_path: Path) -> None:
    async with local_memory(tmp_path, memory_synchronous="normal") as opened:
        await without_upkeep(opened)
        memory_id = await new_memory(opened.service)
        await add_many(opened, memory_id, COMMITS)
        assert parts_of(opened) < COMMITS


async def test_the_index_of_words_is_merged_beside_the_writer(tmp_path: Path) -> None:
    async with local_memory(tmp_path, memory_synchronous="normal") as opened:
        memory_id = await new_memory(opened.service)
        await add_many(opened, memory_id, 40)
        await eventually(lambda: parts_of(opened) < 8, "the index was merged")


async def test_a_file_of_an_earlier_release_is_merged_beside_the_writer_too(tmp_path: Path) -> None:
    async with local_memory(tmp_path) as opened:
        await new_memory(opened.service)
        path = opened.files[0].path
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("delete from memory_words_config where k <> 'version'")
        connection.commit()
    async with local_memory(tmp_path) as opened:
        assert ("automerge", 0) in read(opened, "select k, v from memory_words_config")


async def test_the_log_is_used_from_its_beginning_again_while_the_writer_appends(tmp_path: Path) -> None:
    """SQLite restarts its log once all of it is copied, which other connections do not achieve beside a writer."""
    async with local_memory(tmp_path) as opened:
        file = await without_upkeep(opened)
        memory_id = await new_memory(opened.service)

        class BesideWriter(LocalFile):
            """A checkpoint copies what was committed when it began, and the writer appends before it ends."""

            async def checkpoint(self) -> int:
                with contextlib.closing(sqlite3.connect(file.path)) as snapshot:
                    snapshot.execute("begin")
                    snapshot.execute("select count(*) from memories").fetchone()
                    await opened.service.add_entry(TENANT, memory_id, NewEntry("appended meanwhile"))
                    return await super().checkpoint()

        other = await BesideWriter.open(file.path, 10)
        try:
            await add(opened.service, memory_id, "first")
            before = generation(file.path)
            await FileUpkeep(file, other, restart_pages=1_000_000).checkpoint()
            await add(opened.service, memory_id, "second")
            assert generation(file.path) == before
            await FileUpkeep(file, other, restart_pages=1).checkpoint()
            await add(opened.service, memory_id, "third")
            assert generation(file.path) != before
        finally:
            await other.close()


def generation(path: Path) -> bytes:
    """Return the salts in the header of the write-ahead log, which change when it is used from its beginning again."""
    return Path(f"{path}-wal").read_bytes()[16:24]


async def test_upkeep_continues_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlane.memory.upkeep._FAILURE_PAUSE_SECONDS", 0.0)
    failures = 0
    merge = LocalFile.merge_words

    async def fail_once(self: LocalFile) -> bool:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise sqlite3.DatabaseError("database disk image is malformed")
        return await merge(self)

    monkeypatch.setattr(LocalFile, "merge_words", fail_once)
    async with local_memory(tmp_path, memory_synchronous="normal") as opened:
        memory_id = await new_memory(opened.service)
        await add_many(opened, memory_id, 40)
        await eventually(lambda: parts_of(opened) < 8, "the index was merged")
