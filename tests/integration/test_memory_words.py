"""The index of words of a memory file: it follows the file after each crash, loses no word and keeps none too long."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runlane.domain.memory import NewEntry
from runlane.errors import StorageFull, Unavailable
from runlane.memory import word_indexing
from runlane.memory.opening import OpenMemory
from runlane.store.memory import words_file
from runlane.store.memory.copying import evict
from runlane.store.memory.local_file import LocalFile
from runlane.store.memory.words_file import words_path
from tests.harness import eventually
from tests.memory import TENANT, add, check_index, connections, local_memory, new_memory

FILE = "runlane-memory.db"


def stop_indexing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing but searches advance the index. The end of a process is a crash: it erases nothing."""

    def start(_indexing: word_indexing.WordIndexing) -> None:
        return None

    monkeypatch.setattr(word_indexing.WordIndexing, "start", start)
    monkeypatch.setattr(word_indexing.WordIndexing, "_erase", _nothing)


async def found(opened: OpenMemory, memory_id: str, query: str) -> list[str]:
    return [hit.entry.text for hit in await opened.service.search(TENANT, memory_id, query, limit=100)]


def words_in(path: Path) -> set[str]:
    """Return every word of the index, with those of deleted entries that have not left it."""
    with closing(sqlite3.connect(words_path(path))) as connection:
        connection.execute("create virtual table temp.terms using fts5vocab('main', 'memory_words', 'row')")
        return {row[0] for row in connection.execute("select term from temp.terms")}


def position(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(words_path(path))) as connection:
        connection.row_factory = sqlite3.Row
        return dict(connection.execute("select last_row, last_dropped, remains from memory_words_position").fetchone())


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


async def test_a_commit_indexes_no_word_and_a_search_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_indexing(monkeypatch)
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        await add(opened.service, memory_id, "alpha one", "beta two")
        assert words_in(tmp_path / FILE) == set()
        assert await found(opened, memory_id, "beta") == ["beta two"]
        assert {"alpha", "beta"} <= words_in(tmp_path / FILE)
        await add(opened.service, memory_id, "beta three")
        assert set(await found(opened, memory_id, "beta")) == {"beta two", "beta three"}


async def test_a_search_during_adds_sees_what_was_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words_file, "_ENTRIES_AT_ONCE", 3)
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)

        async def caller(number: int) -> None:
            for index in range(10):
                await opened.service.add_entry(TENANT, memory_id, NewEntry(f"word{number}x{index}"))
                assert await found(opened, memory_id, f"word{number}x{index}") == [f"word{number}x{index}"]

        await asyncio.gather(*(caller(number) for number in range(5)))


async def test_entries_are_indexed_without_a_search(tmp_path: Path) -> None:
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        await add(opened.service, memory_id, "gamma")

        async def is_indexed() -> bool:
            return "gamma" in words_in(tmp_path / FILE)

        await eventually(is_indexed, "the index has the word")


@pytest.mark.parametrize("after", ["words", "nothing"])
async def test_a_crash_between_the_files_loses_no_word_and_adds_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """A crash before the index was stored, or before the content was deleted whose words have left it."""
    stop_indexing(monkeypatch)
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        first, *_ = await add(opened.service, memory_id, "delta one", "delta two")
        await found(opened, memory_id, "delta")
        await opened.service.delete_entry(TENANT, memory_id, first.id)
        await add(opened.service, memory_id, "delta three")
        if after == "words":
            # Only the second half is missing: the deletion of the content.
            await found(opened, memory_id, "delta")
    monkeypatch.undo()
    async with local_memory(tmp_path) as opened:
        assert set(await found(opened, memory_id, "delta")) == {"delta two", "delta three"}
        assert await found(opened, memory_id, "one") == []
        await check_index(opened)
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        assert connection.execute("select count(*) from memory_words_dropped").fetchone()[0] == 0


async def _nothing(*_arguments: Any) -> None:
    return None


async def test_the_number_of_a_deleted_row_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_indexing(monkeypatch)
    async with local_memory(tmp_path) as opened:
        service = opened.service
        first, second = await new_memory(service, "first"), await new_memory(service, "second")
        await add(service, first, "epsilon one")
        await add(service, second, "epsilon two", "epsilon three")
        assert len(await found(opened, second, "epsilon")) == 2
        await evict(connections(opened).writer, second)
        await add(service, first, "epsilon four", "epsilon five", "epsilon six")
        assert set(await found(opened, first, "epsilon")) == {
            "epsilon one",
            "epsilon four",
            "epsilon five",
            "epsilon six",
        }
        await check_index(opened)


async def test_an_entry_that_is_deleted_before_it_is_indexed_leaves_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_indexing(monkeypatch)
    monkeypatch.setattr(words_file, "_ENTRIES_AT_ONCE", 2)
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        await add(opened.service, memory_id, *(f"xi{number}" for number in range(10)))
        await found(opened, memory_id, "xi0")
        entries = await add(opened.service, memory_id, *(f"mu{number} nu" for number in range(8)))
        for entry in reversed(entries[1:6]):
            await opened.service.delete_entry(TENANT, memory_id, entry.id)
        assert set(await found(opened, memory_id, "nu")) == {"mu0 nu", "mu6 nu", "mu7 nu"}
        await check_index(opened)
        words = connections(opened).words

        def total() -> int:
            row = words._open_connection().execute("select block from words.memory_words_data where id = 1").fetchone()
            return bytes(row[0])[0]  # the number of rows, as FTS5 counts them for ranks

        assert await words._thread.submit(total) == 13


async def test_words_of_a_deleted_entry_leave_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_indexing, "_PAUSE_SECONDS", 0.01)
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        for number in range(20):
            [entry] = await add(opened.service, memory_id, f"kept{number} common")
            await found(opened, memory_id, "common")
        [entry] = await add(opened.service, memory_id, "confidential4711 common")
        assert len(await found(opened, memory_id, "confidential4711")) == 1
        assert b"confidential4711" in all_bytes(tmp_path)
        await opened.service.delete_entry(TENANT, memory_id, entry.id)
        assert await found(opened, memory_id, "confidential4711") == []

        async def is_gone() -> bool:
            return "confidential4711" not in words_in(tmp_path / FILE) and not position(tmp_path / FILE)["remains"]

        await eventually(is_gone, "the word has left the index")
        assert len(await found(opened, memory_id, "common")) == 20
        await check_index(opened)
    assert b"4711" not in all_bytes(tmp_path)


def all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.name.startswith(FILE))


async def test_a_deletion_while_words_are_removed_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_indexing(monkeypatch)
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        first, second = await add(opened.service, memory_id, "zeta one", "zeta two")
        await found(opened, memory_id, "zeta")
        await opened.service.delete_entry(TENANT, memory_id, first.id)
        await found(opened, memory_id, "zeta")
        words = connections(opened).words
        dropped = position(tmp_path / FILE)["last_dropped"]
        await words.merge(dropped, first=True)
        await opened.service.delete_entry(TENANT, memory_id, second.id)
        await found(opened, memory_id, "zeta")
        while await words.merge(dropped, first=False):
            pass
        assert position(tmp_path / FILE)["remains"] == 1


async def test_deleted_content_leaves_the_disk_when_a_process_stops(tmp_path: Path) -> None:
    """A command ends before the index follows by itself, and the next command may come much later."""
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        [entry] = await add(opened.service, memory_id, "confidential4711 common")
        await add(opened.service, memory_id, "kept common")
        assert len(await found(opened, memory_id, "confidential4711")) == 1
    async with local_memory(tmp_path) as opened:
        await opened.service.delete_entry(TENANT, memory_id, entry.id)
    assert b"4711" not in all_bytes(tmp_path)
    async with local_memory(tmp_path) as opened:
        assert await found(opened, memory_id, "common") == ["kept common"]
        await check_index(opened)


async def test_deleted_content_leaves_the_disk_although_the_index_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_indexing(monkeypatch)
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        [entry] = await add(opened.service, memory_id, "confidential4711 common")
        await found(opened, memory_id, "common")
        await opened.service.delete_entry(TENANT, memory_id, entry.id)
    assert b"confidential4711" in all_bytes(tmp_path)
    words_path(tmp_path / FILE).unlink()
    async with local_memory(tmp_path) as opened:
        assert await found(opened, memory_id, "common") == []
    assert b"4711" not in all_bytes(tmp_path)


async def test_a_search_does_not_wait_for_a_row_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest memory leaves the file while a search waits for the index."""
    stop_indexing(monkeypatch)
    monkeypatch.setattr(words_file, "_ENTRIES_AT_ONCE", 2)
    async with local_memory(tmp_path) as opened:
        service, words = opened.service, connections(opened).words
        first, second = await new_memory(service, "first"), await new_memory(service, "second")
        await add(service, first, "epsilon one", "epsilon two", "epsilon three")
        await add(service, second, "epsilon four", "epsilon five")
        usual = words.follow

        async def follow() -> words_file.WordsPosition:
            position = await usual()
            await evict(connections(opened).writer, second)
            return position

        monkeypatch.setattr(words, "follow", follow)
        assert set(await found(opened, first, "epsilon")) == {"epsilon one", "epsilon two", "epsilon three"}


async def test_the_index_continues_after_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no further change for that, and a search needs no space if everything is indexed."""
    monkeypatch.setattr(word_indexing, "_FAILURE_PAUSE_SECONDS", 0.01)
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        [entry] = await add(opened.service, memory_id, "pi one")
        await add(opened.service, memory_id, "pi two")
        await found(opened, memory_id, "pi")
        usual, tries = word_indexing.clear_dropped, 0

        async def full(file: Any, through: int) -> None:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise StorageFull("The disk is full.")
            await usual(file, through)

        monkeypatch.setattr(word_indexing, "clear_dropped", full)
        await opened.service.delete_entry(TENANT, memory_id, entry.id)
        assert await found(opened, memory_id, "pi") == ["pi two"]
        await eventually(lambda: tries >= 3, "the content is deleted in the end")


def remove(path: Path) -> None:
    words_path(path).unlink()


def damage(path: Path) -> None:
    content = bytearray(words_path(path).read_bytes())
    content[4096:12288] = b"\xff" * 8192
    words_path(path).write_bytes(content)


def replace_by_text(path: Path) -> None:
    words_path(path).write_bytes(b"this is not a database " * 1000)


def of_another_file(path: Path) -> None:
    edit(words_path(path), "update memory_words_position set id = 'words_of_another_file'")


def ahead_of_the_file(path: Path) -> None:
    """The memory file was restored from a backup."""
    edit(words_path(path), "update memory_words_position set last_row = 1000")


def behind_what_was_deleted(path: Path) -> None:
    """The index was restored from a backup, or a power failure took back what it had stored."""
    edit(words_path(path), "update memory_words_position set last_dropped = 0")


def without_tables(path: Path) -> None:
    """A process was killed while it created the index again."""
    edit(words_path(path), "drop table memory_words", "drop table memory_words_position")


@pytest.mark.parametrize(
    "change",
    [remove, damage, replace_by_text, of_another_file, ahead_of_the_file, behind_what_was_deleted, without_tables],
)
async def test_an_index_that_does_not_fit_is_created_again(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / FILE
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        entries = await add(opened.service, memory_id, "eta one", "eta two", "eta three")
        await opened.service.delete_entry(TENANT, memory_id, entries[0].id)
        await found(opened, memory_id, "eta")
    change(path)
    async with local_memory(tmp_path) as opened:
        await add(opened.service, memory_id, "eta four")
        assert set(await found(opened, memory_id, "eta")) == {"eta two", "eta three", "eta four"}
        await check_index(opened)
    assert words_path(path).stat().st_mode & 0o777 == 0o600


async def test_an_index_that_is_damaged_while_it_is_used_is_created_again(tmp_path: Path) -> None:
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        await add(opened.service, memory_id, *(f"theta {number}" for number in range(20)))
        assert len(await found(opened, memory_id, "theta")) == 20
        edit(words_path(tmp_path / FILE), "delete from memory_words_data where id > 10")
        assert len(await found(opened, memory_id, "theta")) == 20
        await check_index(opened)


def forget_pages(file: LocalFile) -> None:
    """Let a connection read each page from the disk again."""
    connection = file._open_connection()
    connection.execute("pragma words.wal_checkpoint(truncate)").fetchall()
    connection.execute("pragma words.cache_size=1")
    connection.execute("pragma shrink_memory")


@pytest.mark.parametrize("pages", [1, 3, 1000])
async def test_an_index_whose_pages_are_damaged_while_it_is_used_is_created_again(tmp_path: Path, pages: int) -> None:
    """The damaged tables cannot be dropped either. Several searches find the damage at the same time."""
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        for first in range(0, 400, 100):
            texts = [f"rho {number} {' '.join(f'w{number}x{word}' for word in range(30))}" for number in range(100)]
            await opened.service.add_entries(TENANT, memory_id, [NewEntry(f"{first} {text}") for text in texts])
            await found(opened, memory_id, "rho")
        for connection in (connections(opened).words, connections(opened).reader):
            await connection._thread.submit(lambda each=connection: forget_pages(each))
        path = words_path(tmp_path / FILE)
        content = bytearray(path.read_bytes())
        content[4096 : 4096 * (1 + pages)] = b"\xff" * len(content[4096 : 4096 * (1 + pages)])
        path.write_bytes(content)
        await add(opened.service, memory_id, "sigma")
        for _ in range(2):
            hits = await asyncio.gather(*(found(opened, memory_id, "sigma rho") for _ in range(4)))
            assert [len(texts) for texts in hits] == [100] * 4
        await check_index(opened)


async def test_a_search_does_not_wait_for_ever_for_a_new_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_indexing(monkeypatch)
    monkeypatch.setattr(words_file, "_ENTRIES_AT_ONCE", 1)
    monkeypatch.setattr(word_indexing, "_SEARCH_SECONDS", 0)
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        await add(opened.service, memory_id, "iota one", "iota two", "iota three", "iota four")
        with pytest.raises(Unavailable, match="Repeat the search later"):
            await found(opened, memory_id, "iota")


async def test_two_processes_share_the_index_of_a_local_file(tmp_path: Path) -> None:
    async with local_memory(tmp_path) as one, local_memory(tmp_path) as two:
        memory_id = await new_memory(one.service)
        for number in range(20):
            await add(one.service, memory_id, f"kappa{number}")
            await add(two.service, memory_id, f"lambda{number}")
            assert await found(two, memory_id, f"kappa{number}") == [f"kappa{number}"]
            assert await found(one, memory_id, f"lambda{number}") == [f"lambda{number}"]
        await check_index(one)
