"""Memory files of earlier versions: opened, upgraded, and nothing of them lost."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from runlane.domain.memory import CommitState, NewEntry
from runlane.errors import ConfigurationError, Conflict
from runlane.store.memory.local_file import VERSION, LocalFile
from tests.integration.memory_files import write_memory_file
from tests.memory import TENANT, add, check_log, direct_memory, local_memory, memory_node, texts_of


def layout_of(path: Path) -> dict[str, str]:
    connection = sqlite3.connect(path)
    found = connection.execute("select name, sql from sqlite_master where sql is not null").fetchall()
    assert connection.execute("pragma user_version").fetchone()[0] == VERSION
    assert connection.execute("pragma integrity_check").fetchone()[0] == "ok"
    connection.close()
    return {name: "".join(sql.lower().replace('"', "").split()) for name, sql in found}


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_a_node_continues_on_a_file_of_an_earlier_version(
    postgres_url: str, tmp_path: Path, version: int
) -> None:
    """Operations that the earlier version acknowledged and did not replicate reach the database, in order and once."""
    async with direct_memory(postgres_url) as other:
        memory = await other.service.create_memory(TENANT, "notes")
        await add(other.service, memory.id, "one")
    columns = ("id", "tenant", "vault_id", "memory_type", "title", "description")
    row = {name: getattr(memory, name) for name in columns} | {"created_at": memory.created_at_us}
    write_memory_file(tmp_path / "memory.db", version, row, ["one", "two words", "three"], applied=2)
    async with memory_node(postgres_url, tmp_path / "memory.db") as node:
        assert node.node is not None
        assert node.node.id == "node_of_an_earlier_version"
        await node.service.set_tags(TENANT, memory.id, "entry_of_2", {"kind": "number"})
        await add(node.service, memory.id, "four")
        assert (await node.service.await_commit(TENANT, memory.id, 60)).state is CommitState.COMMITTED
        expected = ["one", "two words", "three", "four"]
        assert await texts_of(node.service, memory.id) == expected
        assert await texts_of(node.service, memory.id, consistency="committed") == expected
        hits = await node.service.search(TENANT, memory.id, "words")
        assert [hit.entry.text for hit in hits] == ["two words"]
        await check_log(node.node.remote, memory.id)
    fresh = await LocalFile.open_writer(tmp_path / "fresh.db", 10, "full", copies=True)
    await fresh.close()
    upgraded, new = layout_of(tmp_path / "memory.db"), layout_of(tmp_path / "fresh.db")
    assert set(upgraded) == set(new)
    # Requests for memories are in the database alone, so the format of files is the same.
    assert "requested" not in new["memories"]
    assert "memories_requested" not in new
    # Words have a file of their own.
    assert not {"memory_words", "memory_words_added"} & set(new)
    for name in ("memory_ops", "memory_ops_id", "memory_ops_created", "memories_unreplicated", "memory_words_removed"):
        assert upgraded[name] == new[name]


@pytest.mark.parametrize("version", [1, 2, 3, 4])
async def test_idempotency_keys_of_an_earlier_version_are_recognised(tmp_path: Path, version: int) -> None:
    row = {"id": "mem_1", "tenant": TENANT, "vault_id": "vault_1", "memory_type": "notes", "title": "notes"}
    row |= {"description": "", "created_at": 1}
    path = tmp_path / "runlane-memory.db"
    write_memory_file(path, version, row, ["one", "two"], applied=3, keys=["first"], copies=False)
    async with local_memory(tmp_path) as opened:
        assert await texts_of(opened.service, "mem_1") == ["one", "two"]
        # Known, with another content: the hash of the request differs.
        with pytest.raises(Conflict, match="another request"):
            await opened.service.add_entry(TENANT, "mem_1", NewEntry("x"), idempotency_key="first")
        await opened.service.add_entry(TENANT, "mem_1", NewEntry("three"), idempotency_key="second")
        assert await texts_of(opened.service, "mem_1") == ["one", "two", "three"]


@pytest.mark.parametrize("copies", [True, False])
async def test_a_file_of_another_mode_is_refused(tmp_path: Path, copies: bool) -> None:
    """A node would delete what is the only copy, and a process without Postgres would forget what was to replicate."""
    path = tmp_path / "memory.db"
    await (await LocalFile.open_writer(path, 10, "full", copies=copies)).close()
    with pytest.raises(ConfigurationError, match="RUNLANE_MEMORY_PATH"):
        await LocalFile.open_writer(path, 10, "full", copies=not copies)
    await (await LocalFile.open_writer(path, 10, "full", copies=copies)).close()


async def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "later.db"
    connection = sqlite3.connect(path)
    connection.execute(f"pragma user_version={VERSION + 1}")
    connection.close()
    with pytest.raises(ConfigurationError, match=f"version {VERSION + 1}"):
        await LocalFile.open_writer(path, 10, "full")
