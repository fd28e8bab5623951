"""Deleted and replaced content leaves the files of a memory while the process runs; a deleted tenant leaves none."""

from __future__ import annotations

import logging
import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from runlane.domain.memory import CONTEXT_FRAGMENT, NewEntry
from runlane.errors import Conflict, NotFound
from runlane.memory import checkpoints
from runlane.store.access.tenants import create_tenant, delete_tenant, find_tenant
from runlane.store.memory.local_file import LocalFile
from tests.harness import eventually
from tests.memory import TENANT, add, direct_memory, local_memory, new_memory, texts_of

FILE = "runlane-memory.db"


def files_with(folder: Path, content: str) -> set[str]:
    """Return the names of the files of a memory that contain this content."""
    found = {path.name for path in folder.glob(f"{FILE}*") if content.encode() in path.read_bytes()}
    return {name.removeprefix(FILE) for name in found}


async def test_deleted_content_leaves_the_files_of_a_running_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_TRUNCATE_SECONDS", 0.01)
    async with local_memory(tmp_path) as opened:
        service, memory_id = opened.service, await new_memory(opened.service)
        [entry] = await add(service, memory_id, "entry4711 of the past")
        await service.put_fragment(TENANT, memory_id, CONTEXT_FRAGMENT, "context4711 of the past")
        assert len(await service.search(TENANT, memory_id, "entry4711")) == 1
        assert files_with(tmp_path, "entry4711") & {"", "-wal"}
        assert files_with(tmp_path, "context4711") & {"", "-wal"}
        await service.delete_entry(TENANT, memory_id, entry.id)
        await service.put_fragment(TENANT, memory_id, CONTEXT_FRAGMENT, "of today")

        async def are_gone() -> bool:
            return not (files_with(tmp_path, "4711 of the past") or files_with(tmp_path, "entry4711"))

        await eventually(are_gone, "the content has left every file")
        await add(service, memory_id, "later")
        assert await texts_of(service, memory_id) == ["later"]


async def test_a_checkpoint_that_fails_is_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full: the file cannot grow, and the log cannot be copied to it."""
    monkeypatch.setattr(checkpoints, "_BYTES", 1)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    async with local_memory(tmp_path) as opened:
        assert opened.checkpointer is not None
        await opened.checkpointer.stop()
        path, memory_id = tmp_path / FILE, await new_memory(opened.service)
        await opened.service.add_entries(TENANT, memory_id, [NewEntry("x" * 5000) for _ in range(100)])
        before, size = resource.getrlimit(resource.RLIMIT_FSIZE), path.stat().st_size
        with structlog.testing.capture_logs() as logs:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
            try:
                opened.checkpointer.start()
                opened.checkpointer.wake()
                await eventually(lambda: [line for line in logs if line["event"] == "memory_checkpoint_failed"])
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
        opened.checkpointer.wake()
        await eventually(lambda: path.stat().st_size > size, "the log is copied to the file")
        assert len(await texts_of(opened.service, memory_id)) == 100


async def test_a_reader_that_needs_the_log_delays_its_truncation_only(tmp_path: Path) -> None:
    path = tmp_path / FILE
    file = await LocalFile.open_writer(path, 5, "full")
    checkpointing = await LocalFile.open(path, 5)
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("begin")
            assert reader.execute("select count(*) from memories").fetchone() == (0,)
            assert not await checkpointing.truncate_log()
        assert await checkpointing.truncate_log()
        assert path.with_name(f"{FILE}-wal").stat().st_size == 0
    finally:
        await checkpointing.close()
        await file.close()


async def test_a_tenant_is_deleted_after_its_memories(postgres_url: str) -> None:
    async with direct_memory(postgres_url) as opened:
        service, database = opened.service, opened.storage.shared
        await create_tenant(database, "acme", actor="test")
        await service.create_user("acme", "ada", "ada@example.com")
        memory = await service.create_memory("acme", "notes")
        with pytest.raises(Conflict, match="has memories"):
            await delete_tenant(database, "acme", actor="test")
        assert (await find_tenant(database, "acme")).enabled
        assert (await service.get_memory("acme", memory.id)).title == "notes"
        await service.delete_memory("acme", memory.id)
        await delete_tenant(database, "acme", actor="test")
        assert await service.list_vaults("acme") == []
        with pytest.raises(NotFound):
            await service.get_user("acme", "ada")
