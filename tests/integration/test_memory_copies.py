"""Copies of memories: a node that gets a memory back copies what changed, and all of it if that is not safe."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runlane.domain.memory import CommitState, NewEntry
from runlane.errors import Conflict
from runlane.memory.modes import MemoryStorage
from runlane.memory.opening import OpenMemory
from runlane.store.memory import copying
from tests.memory import TENANT, add, check_log, direct_memory, memory_node, new_memory, texts_of

TABLES = {
    "memory_entries": "id, seq, changed_seq, text, tags, corrects, corrected_by, correction_reason, deleted_at",
    "memory_fragments": "name, content, seq",
    "memory_ops": "seq, op_id, fingerprint, kind, subject, state",
    "memories": "title, last_seq, applied_seq, parked, stale",
}


def rows_of(path: Path, memory_id: str) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(path)) as connection:
        return {
            table: connection.execute(
                f"select {names} from {table} where {'id' if table == 'memories' else 'memory_id'} = ? order by 1",
                (memory_id,),
            ).fetchall()
            for table, names in TABLES.items()
        }


def change_file(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


@pytest.fixture
async def node(postgres_url: str, tmp_path: Path) -> AsyncGenerator[OpenMemory]:
    async with memory_node(postgres_url, tmp_path / "memory.db") as opened:
        yield opened


async def given_back(node: OpenMemory, other: OpenMemory) -> str:
    """Return a memory of which the node has a copy, and which another process has changed since."""
    service, memory_id = node.service, await new_memory(node.service)
    kept, tagged, wrong, gone = await add(service, memory_id, "kept", "tagged", "wrong word", "gone word")
    assert kept.seq == 2
    await service.put_fragment(TENANT, memory_id, "dropped", "x")
    await service.add_entry(TENANT, memory_id, NewEntry("first key"), idempotency_key="first")
    assert (await service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
    # The other process gets the memory from the node.
    await other.service.set_tags(TENANT, memory_id, tagged.id, {"kind": "tag"})
    await other.service.correct_entry(TENANT, memory_id, wrong.id, NewEntry("right word"), "a mistake")
    await other.service.delete_entry(TENANT, memory_id, gone.id)
    await other.service.put_fragment(TENANT, memory_id, "context", "changed")
    await other.service.delete_fragment(TENANT, memory_id, "dropped")
    await other.service.add_entry(TENANT, memory_id, NewEntry("second key"), idempotency_key="second")
    return memory_id


async def test_a_node_that_gets_a_memory_back_copies_what_changed(
    node: OpenMemory, postgres_url: str, tmp_path: Path
) -> None:
    async with direct_memory(postgres_url) as other:
        memory_id = await given_back(node, other)
        # A mark in the copy, which a new copy of the whole memory would not have.
        change_file(tmp_path / "memory.db", "update memory_entries set metadata = '{\"mark\": 1}' where seq = 2")
        service = node.service
        with pytest.raises(Conflict, match="another request"):
            await service.add_entry(TENANT, memory_id, NewEntry("x"), idempotency_key="second")
        page = await service.list_entries(TENANT, memory_id, after=0)
        assert [entry.seq for entry in page.entries if entry.metadata] == [2]
        expected = ["kept", "tagged", "wrong word", "first key", "right word", "second key"]
        assert await texts_of(service, memory_id) == expected
        found = [hit.entry.text for hit in await service.search(TENANT, memory_id, "word")]
        assert found == ["right word"]
        await add(service, memory_id, "after")
        assert (await service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
        assert await texts_of(service, memory_id, consistency="committed") == [*expected, "after"]
        assert node.node is not None
        await check_log(node.node.remote, memory_id)
    await node.close()
    async with memory_node(postgres_url, tmp_path / "fresh.db") as fresh:
        await add(fresh.service, memory_id, "last")
        assert (await fresh.service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
        async with memory_node(postgres_url, tmp_path / "memory.db") as again:
            await add(again.service, memory_id, "of the first node")
            assert (await again.service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
            await add(fresh.service, memory_id, "of the other node")
            assert (await fresh.service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
            await again.service.set_tags(TENANT, memory_id, page.entries[0].id, {"last": "tag"})
            await again.service.set_tags(TENANT, memory_id, page.entries[0].id, {})
            assert (await again.service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
            with pytest.raises(Conflict, match="another request"):
                await fresh.service.add_entry(TENANT, memory_id, NewEntry("x"), idempotency_key="second")
        # Both files have the same copy, whatever parts of it they copied when.
        assert rows_of(tmp_path / "memory.db", memory_id) == rows_of(tmp_path / "fresh.db", memory_id)


@pytest.mark.parametrize("reason", ["an entry is missing", "much has changed"])
async def test_a_copy_that_cannot_be_brought_up_to_date_is_copied_again(
    node: OpenMemory, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    path = tmp_path / "memory.db"
    async with direct_memory(postgres_url) as other:
        memory_id = await given_back(node, other)
        change_file(path, "update memory_entries set metadata = '{\"mark\": 1}' where seq = 2")
        if reason == "an entry is missing":
            change_file(path, "delete from memory_entries where seq = 3")
        else:
            monkeypatch.setattr(copying, "COPY_PAGE", 2)
        await add(node.service, memory_id, "after")
        page = await node.service.list_entries(TENANT, memory_id, after=0)
        assert [entry.text for entry in page.entries] == [
            "kept", "tagged", "wrong word", "first key", "right word", "second key", "after",
        ]  # fmt: skip
        assert not any(entry.metadata for entry in page.entries)


async def test_a_read_finds_a_memory_whose_copy_leaves_the_file_meanwhile(
    node: OpenMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, owner, usual = node.service, node.node, MemoryStorage.barrier
    assert owner is not None
    memory_id = await new_memory(service)

    async def leave(storage: MemoryStorage, read: str) -> None:
        await usual(storage, read)
        await owner.give_back(read)
        assert not owner.owns(read)

    for read in (
        lambda: texts_of(service, memory_id),
        lambda: service.get_fragment(TENANT, memory_id, "context"),
        lambda: service.search(TENANT, memory_id, "one"),
    ):
        # A change brings the copy back.
        await add(service, memory_id, "one")
        assert (await service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        with monkeypatch.context() as patched:
            patched.setattr(MemoryStorage, "barrier", leave)
            assert await read()
