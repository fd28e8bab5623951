"""Runs on whole memories: export, import and purge, each with one effect however often it is attempted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from runlane import Status
from runlane.bus.memory import MemoryBus
from runlane.domain.memory import MAX_METADATA_BYTES, Memory, MemoryEntry, MemoryExport, NewEntry
from runlane.domain.memory_archive import ExportRecords, MemoryImport, NewFragment, import_of
from runlane.domain.quota import MEMORIES
from runlane.domain.wire import from_json
from runlane.errors import InvalidInput, NotFound, QuotaReached
from runlane.memory import archiving, replication_pace
from runlane.memory.service import MemoryService
from runlane.settings import Settings
from runlane.store.access.audit import list_audit
from runlane.store.access.quotas import read_quotas, server_quotas, set_quota
from runlane.submit.memory_runs import start_export, start_import, start_purge
from tests.integration.process import Process
from tests.memory import TENANT, add, direct_memory, memory_node, new_memory, texts_of


@pytest.fixture
async def process(settings: Settings) -> AsyncGenerator[Process]:
    process = Process(settings)
    try:
        yield process
    finally:
        await process.stop()


class Attempts:
    """The context of a run whose attempts are lost at a chosen call, and what the next one finds."""

    tenant = TENANT
    run_id = "run_1"

    def __init__(self, fail_at: int) -> None:
        self.saved: Any = None
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self._left = fail_at

    def _call(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise ConnectionError("the worker was lost")

    async def log(self, message: str, **fields: Any) -> None:
        self.lines.append((message, fields))
        self._call()

    async def checkpoint(self, value: Any) -> None:
        self._call()
        self.saved = value

    async def progress(self, fraction: float, note: str | None = None) -> None:
        self._call()


def exported_by(lines: list[tuple[str, dict[str, Any]]]) -> MemoryExport:
    records = ExportRecords()
    for message, fields in lines:
        records.add(message, fields)
    return from_json(MemoryExport, records.exported())


async def export_run(process: Process, memory_id: str) -> MemoryExport:
    accepted = await start_export(await process.app.connect(), TENANT, memory_id, actor="test")
    assert (await process.end(accepted.run_id)).status is Status.COMPLETED
    events = await process.app.events(accepted.run_id)
    return exported_by([(event.data["message"], event.data["fields"]) for event in events if event.type == "log"])


def contents(entries: Any) -> list[tuple[str, str, dict[str, str]]]:
    return [(entry.text, entry.summary, dict(entry.tags)) for entry in entries]


async def many(service: MemoryService, memory_id: str, count: int) -> list[MemoryEntry]:
    added: list[MemoryEntry] = []
    for first in range(0, count, 100):
        new = [NewEntry(f"entry {number}", tags={"n": str(number)}) for number in range(first, first + 100)]
        added += await service.add_entries(TENANT, memory_id, new)
    return added


async def test_an_exported_memory_can_be_imported_and_purged(process: Process) -> None:
    service = await process.app.memory()
    source, target = await new_memory(service, "source"), await new_memory(service, "target")
    # Longer than a line of a log, and with characters that JSON escapes.
    long = '\\"\x01' * 3000
    await add(service, source, "one", long, "three")
    deleted = (await add(service, source, "deleted"))[0]
    await service.delete_entry(TENANT, source, deleted.id)
    await service.put_fragment(TENANT, source, "context", "ü" * 65_000)
    await process.start()
    exported = await export_run(process, source)
    assert [entry.text for entry in exported.entries] == ["one", long, "three"]
    assert exported == await service.export_memory(TENANT, source)

    connection = await process.app.connect()
    # Started again with the same keys, nothing is added twice.
    runs = [
        await start_import(connection, TENANT, target, part, actor="test", key=f"move.{number}")
        for _ in range(2)
        for number, part in enumerate(import_of(exported).parts())
    ]
    assert len({run.run_id for run in runs}) == len(runs) / 2
    for run in runs:
        assert (await process.end(run.run_id)).status is Status.COMPLETED
    imported = await service.export_memory(TENANT, target)
    assert contents(imported.entries) == contents(exported.entries)
    assert imported.entries[0].metadata["imported"]["id"] == exported.entries[0].id
    assert imported.fragments[0].content == "ü" * 65_000

    last = (await add(service, target, "kept"))[0]
    purge = await start_purge(connection, TENANT, target, last.created_at_us, actor="test")
    assert (await process.end(purge.run_id)).result == {"deleted": 3}
    assert await texts_of(service, target) == ["kept"]
    actions = [entry.action for entry in await list_audit(connection.database, tenant=TENANT)]
    assert [action for action in actions if action.startswith("memory.")] == [
        "memory.purge",
        *["memory.import"] * len(runs),
        "memory.export",
    ]


async def test_an_export_that_is_interrupted_continues_after_its_last_page(process: Process) -> None:
    service = await process.app.memory()
    memory_id = await new_memory(service)
    await many(service, memory_id, 500)
    ctx = Attempts(fail_at=260)
    with pytest.raises(ConnectionError):
        await archiving.export_memory(ctx, service, memory_id)
    before = len(ctx.lines)
    assert (await archiving.export_memory(ctx, service, memory_id))["entries"] == 500
    assert len(ctx.lines) - before < 500
    assert [entry.text for entry in exported_by(ctx.lines).entries] == [f"entry {number}" for number in range(500)]


async def test_an_import_that_is_interrupted_adds_its_entries_once(process: Process) -> None:
    service = await process.app.memory()
    memory_id = await new_memory(service)
    entries = [{"text": f"entry {number}"} for number in range(250)]
    fragments = [{"name": "context", "content": "imported"}]
    ctx = Attempts(fail_at=2)
    with pytest.raises(ConnectionError):
        await archiving.import_memory(ctx, service, memory_id, entries, fragments)
    assert len(await texts_of(service, memory_id)) == 200
    await archiving.import_memory(ctx, service, memory_id, entries, fragments)
    assert await texts_of(service, memory_id) == [f"entry {number}" for number in range(250)]
    assert (await service.get_fragment(TENANT, memory_id, "context")).content == "imported"


async def test_a_memory_is_imported_although_entries_have_expired_since_its_export(process: Process) -> None:
    connection, service = await process.app.connect(), await process.app.memory()
    memory_id = await new_memory(service)
    given = MemoryImport([NewEntry("short lived", expires_at_us=1), NewEntry("kept")])
    await process.start()
    accepted = await start_import(connection, TENANT, memory_id, given, actor="test")
    run = await process.end(accepted.run_id)
    assert (run.status, run.error) == (Status.COMPLETED, None)
    assert await texts_of(service, memory_id) == ["kept"]


def test_metadata_without_room_for_the_earlier_id_is_imported_as_it_is() -> None:
    memory = Memory("mem_1", TENANT, "vault_1", "notes", "notes", "", 1, 1)
    metadata = {"x": "y" * (MAX_METADATA_BYTES - 20)}
    entries = [MemoryEntry("entry_1", "mem_1", 2, "text", "", given, {}, 1) for given in ({}, metadata)]
    first, second = import_of(MemoryExport(memory, entries, [])).entries
    assert first.metadata["imported"]["id"] == "entry_1"
    assert second.metadata == metadata


def test_records_of_a_lost_attempt_are_replaced_by_those_of_the_next_one() -> None:
    """An entry was deleted in between, so the numbers of the records differ."""

    def line(record: int, part: int, parts: int, text: str) -> tuple[str, dict[str, int]]:
        return text, {"record": record, "part": part, "parts": parts}

    records = ExportRecords()
    for message, fields in (
        line(0, 1, 1, '{"memory": 0}'),
        line(1, 1, 2, '{"entry": "lo'),
        line(1, 2, 2, 'ng"}'),
        line(2, 1, 1, '{"entry": "two"}'),
        line(3, 1, 1, '{"entry": "three"}'),
        line(1, 1, 1, '{"entry": "two"}'),
        line(2, 1, 1, '{"entry": "three"}'),
    ):
        records.add(message, fields)
    assert records.exported() == {"memory": 0, "entries": ["two", "three"], "fragments": []}


async def test_a_purge_that_is_interrupted_deletes_the_rest_and_nothing_newer(process: Process) -> None:
    service = await process.app.memory()
    memory_id = await new_memory(service)
    await many(service, memory_id, 500)
    ctx = Attempts(fail_at=2)
    with pytest.raises(ConnectionError):
        await archiving.purge_memory(ctx, service, memory_id, None)
    await add(service, memory_id, "later")
    assert await archiving.purge_memory(ctx, service, memory_id, None) == {"deleted": 500}
    assert await texts_of(service, memory_id) == ["later"]


@pytest.mark.parametrize("where", ["owner", "other"])
async def test_exports_and_purges_cover_what_was_accepted_before_them_and_is_not_replicated(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    for name in ("GATHER_SECONDS", "PAUSE_SECONDS"):
        monkeypatch.setattr(replication_pace, name, 3600.0)
    bus = MemoryBus()
    async with (
        memory_node(postgres_url, tmp_path / "memory.db", bus) as node,
        direct_memory(postgres_url, bus) as other,
    ):
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "replicated")
        await node.service.await_commit(TENANT, memory_id, 60)
        await add(node.service, memory_id, "one", "two")
        service = node.service if where == "owner" else other.service
        assert (await archiving.export_memory(Attempts(fail_at=0), service, memory_id))["entries"] == 3
        await add(node.service, memory_id, "three")
        assert await archiving.purge_memory(Attempts(fail_at=0), service, memory_id, None) == {"deleted": 4}
        assert await texts_of(service, memory_id) == []


async def test_what_cannot_be_imported_is_refused_before_a_run_is_started(process: Process) -> None:
    connection = await process.app.connect()
    memory_id = await new_memory(await process.app.memory())
    for given in (
        MemoryImport([NewEntry("")]),
        MemoryImport([], [NewFragment("../etc", "x")]),
    ):
        with pytest.raises(InvalidInput):
            await start_import(connection, TENANT, memory_id, given, actor="test")
    with pytest.raises(NotFound):
        await start_purge(connection, "other", memory_id, None, actor="test")
    assert [run async for run in process.app.list()] == []


async def test_exactly_the_quota_of_memories_can_be_created(process: Process) -> None:
    connection, service = await process.app.connect(), await process.app.memory()
    first = await new_memory(service, "first")
    await set_quota(connection.database, TENANT, MEMORIES, 3, actor="test")
    calls = [service.create_memory(TENANT, f"m{number}") for number in range(6)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(result, QuotaReached) for result in results) == 4

    async def used() -> float | None:
        uses = await read_quotas(connection.database, TENANT, server_quotas(connection.settings))
        uses = await connection.memory_opener.with_use(TENANT, uses)
        return next(use.used for use in uses if use.name == MEMORIES)

    assert await used() == 3
    await service.delete_memory(TENANT, first)
    assert await used() == 2
    await new_memory(service, "again")
