"""Memory in one process: order, back-pressure, failures of single changes, stop, expiry, damaged files, a full disk."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from runlane.domain.memory import CommitState, NewEntry, shard_of
from runlane.errors import Conflict, MemoryFileBroken, NotFound, RunlaneError, StorageFull, Unavailable
from runlane.memory import writer as writer_module
from runlane.memory.opening import OpenMemory
from runlane.memory.service import MemoryService
from runlane.store.memory.local_file import LocalFile
from tests.memory import (
    TENANT,
    add,
    connections,
    direct_memory,
    local_memory,
    memory_node,
    neighbours,
    new_memory,
    texts_of,
)


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncGenerator[OpenMemory]:
    async with local_memory(tmp_path) as memory:
        yield memory


def test_shards_are_chosen_by_fnv_1a() -> None:
    assert [shard_of(text) for text in ("", "a", "foobar", "memory-123")] == [197, 44, 104, 87]
    assert shard_of("11111111-1111-4111-8111-111111111111") == 35
    assert shard_of("22222222-2222-4222-8222-222222222222") == 161


async def test_changes_of_one_memory_are_applied_in_the_order_of_their_calls(opened: OpenMemory) -> None:
    """Weakness 17: concurrent calls for one key had no order."""
    memory_id = await new_memory(opened.service)
    calls = [
        asyncio.create_task(opened.service.add_entry(TENANT, memory_id, NewEntry(f"{number}"))) for number in range(100)
    ]
    entries = await asyncio.gather(*calls)
    assert [entry.seq for entry in entries] == list(range(2, 102))
    assert await texts_of(opened.service, memory_id) == [str(number) for number in range(100)]


async def test_entries_of_one_moment_are_kept_apart_and_paged_without_loss(tmp_path: Path) -> None:
    """Weaknesses 10 and 24: entries of one tick collided, and pages by time dropped some."""
    async with local_memory(tmp_path) as opened:
        service = MemoryService(opened.storage, clock=lambda: 1_000_000)
        memory_id = await new_memory(service)
        await service.add_entries(TENANT, memory_id, [NewEntry(f"{number}") for number in range(50)])
        found: list[str] = []
        before = None
        while True:
            page = await service.list_entries(TENANT, memory_id, limit=7, before=before)
            found += [entry.text for entry in page.entries]
            before = page.next_before
            if before is None:
                break
        assert found == [str(number) for number in reversed(range(50))]


async def test_a_change_that_raises_fails_alone_and_its_shard_continues(
    opened: OpenMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weakness 11: one job that raised ended its shard for good."""
    memory_id = await new_memory(opened.service)
    usual = writer_module.write_requests

    async def faulty(session: Any, requests: Any, rules: Any) -> Any:
        if any("boom" in entry.text for request in requests for entry in getattr(request, "entries", ())):
            raise ZeroDivisionError("a defect")
        return await usual(session, requests, rules)

    monkeypatch.setattr(writer_module, "write_requests", faulty)
    texts = [f"entry {number}" if number % 10 else f"boom {number}" for number in range(50)]
    calls = [opened.service.add_entry(TENANT, memory_id, NewEntry(text)) for text in texts]
    results = await asyncio.gather(*calls, return_exceptions=True)
    failed = [text for text, result in zip(texts, results, strict=True) if isinstance(result, RunlaneError)]
    assert failed == [text for text in texts if "boom" in text]
    assert await texts_of(opened.service, memory_id) == [text for text in texts if "boom" not in text]
    await add(opened.service, memory_id, "after")


async def test_a_refused_change_leaves_the_others_of_its_batch(opened: OpenMemory) -> None:
    memory_id = await new_memory(opened.service)
    service = opened.service
    results = await asyncio.gather(
        service.add_entry(TENANT, memory_id, NewEntry("one")),
        service.delete_entry(TENANT, memory_id, "entry_of_nothing"),
        service.set_tags(TENANT, "mem_of_nothing", "entry_x", {}),
        service.add_entry(TENANT, memory_id, NewEntry("two")),
        return_exceptions=True,
    )
    assert [isinstance(result, NotFound) for result in results] == [False, True, True, False]
    assert await texts_of(service, memory_id) == ["one", "two"]


async def test_a_busy_memory_does_not_delay_another_one_of_its_shard(tmp_path: Path) -> None:
    """Weakness 3: unrelated memories of a shard waited for each other."""
    async with local_memory(tmp_path) as opened:
        first, second = await neighbours(opened.service)
        commits: list[set[str]] = []
        opened.storage.writer.on_committed(commits.append)
        calls = [
            asyncio.create_task(opened.service.add_entry(TENANT, first, NewEntry(f"{number}"))) for number in range(100)
        ]
        # The calls run once, in their order, up to their place in the queue.
        await asyncio.sleep(0)
        assert len(opened.storage.shards) == 100
        await opened.service.add_entry(TENANT, second, NewEntry("quick"))
        # It is written by the commit that takes what waits, and not after a hundred others.
        assert len(commits) <= 2
        assert second in commits[-1]
        await asyncio.gather(*calls)


async def test_people_create_memories_while_the_shards_are_full(
    opened: OpenMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creation is on a path of its own: changes of agents that wait do not delay it."""
    service, writer = opened.service, opened.storage.writer
    memory_id = await new_memory(service)
    release, usual = asyncio.Event(), writer._write

    async def held(jobs: Any) -> None:
        await release.wait()
        await usual(jobs)

    monkeypatch.setattr(writer, "_write", held)
    calls = [asyncio.create_task(service.add_entry(TENANT, memory_id, NewEntry(f"{n}"))) for n in range(128)]
    await asyncio.sleep(0)
    assert len(opened.storage.shards) == 128
    await service.create_user(TENANT, "ada", "ada@example.com")
    other = await new_memory(service, "other")
    assert {memory.id for memory in await service.list_memories(TENANT)} == {memory_id, other}
    assert not any(call.done() for call in calls)
    release.set()
    await asyncio.gather(*calls)


async def test_stop_writes_what_was_accepted_and_refuses_the_rest(tmp_path: Path) -> None:
    """Weaknesses 12, 13, 14 and 16: stop dropped acknowledged jobs, or accepted some that no worker read."""
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        calls = [
            asyncio.create_task(opened.service.add_entry(TENANT, memory_id, NewEntry(f"{number}")))
            for number in range(100)
        ]
        await asyncio.sleep(0)
        await opened.storage.writer.stop()
        with pytest.raises(Unavailable):
            await opened.service.add_entry(TENANT, memory_id, NewEntry("late"))
        results = await asyncio.gather(*calls, return_exceptions=True)
    stored = [str(number) for number, result in enumerate(results) if not isinstance(result, Exception)]
    async with local_memory(tmp_path) as again:
        assert await texts_of(again.service, memory_id) == stored
        assert stored == [str(number) for number in range(100)]


async def test_a_caller_that_goes_away_loses_nothing_and_blocks_nothing(opened: OpenMemory) -> None:
    memory_id = await new_memory(opened.service)
    calls = [
        asyncio.create_task(opened.service.add_entry(TENANT, memory_id, NewEntry(f"{number}"))) for number in range(20)
    ]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert await texts_of(opened.service, memory_id) == [str(number) for number in range(20)]


async def test_a_correction_names_its_entry_once(opened: OpenMemory) -> None:
    service, memory_id = opened.service, await new_memory(opened.service)
    (first,) = await add(service, memory_id, "The sky is green.")
    fixed = await service.correct_entry(TENANT, memory_id, first.id, NewEntry("The sky is blue."), "looked again")
    old = await service.get_entry(TENANT, memory_id, first.id)
    assert (old.text, old.corrected_by, old.correction_reason) == ("The sky is green.", fixed.id, "looked again")
    with pytest.raises(Conflict):
        await service.correct_entry(TENANT, memory_id, first.id, NewEntry("The sky is red."), "again")
    assert [hit.entry.id for hit in await service.search(TENANT, memory_id, "sky")] == [fixed.id]


async def test_an_expired_entry_is_not_returned_and_its_content_is_deleted(tmp_path: Path) -> None:
    async with local_memory(tmp_path) as opened:
        clock = 1_000_000
        service = MemoryService(opened.storage, clock=lambda: clock)
        memory_id = await new_memory(service)
        entry = await service.add_entry(TENANT, memory_id, NewEntry("short lived", expires_at_us=2_000_000))
        await add(service, memory_id, "kept")
        # By the clock of the file its time is over.
        assert await texts_of(service, memory_id) == ["kept"]
        assert await service.search(TENANT, memory_id, "short") == []
        with pytest.raises(NotFound):
            await service.get_entry(TENANT, memory_id, entry.id)
        assert opened.cleanup is not None
        await opened.cleanup.clean()
        path = connections(opened).writer.path
    with sqlite3.connect(path) as connection:
        assert connection.execute("select count(*) from memory_entries where text like '%lived%'").fetchone() == (0,)
    connection.close()


async def test_deleted_content_leaves_the_file_and_the_index(tmp_path: Path) -> None:
    """Weakness 23: a deleted entry could come back in search."""
    async with local_memory(tmp_path) as opened:
        service, memory_id = opened.service, await new_memory(opened.service)
        (entry,) = await add(service, memory_id, "canary-4711 is secret")
        await service.delete_entry(TENANT, memory_id, entry.id)
        await service.delete_entry(TENANT, memory_id, entry.id)
        assert await service.search(TENANT, memory_id, "canary 4711 secret") == []
        with pytest.raises(NotFound):
            await service.set_tags(TENANT, memory_id, entry.id, {})
        path = connections(opened).writer.path
    connection = sqlite3.connect(path)
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
    assert b"canary-4711" not in path.read_bytes()


async def test_hostile_queries_are_words(opened: OpenMemory) -> None:
    service, memory_id = opened.service, await new_memory(opened.service)
    other = await new_memory(service, "other")
    await add(service, other, "hello from another memory")
    (entry,) = await add(service, memory_id, "hello snake_case naïve Straße 東京")
    for query in ('"', "hello OR", "memory : x", "NEAR(hello", "hello*", "a' or 1=1 --", "{entry} : hello", "(((", "_"):
        hits = await service.search(TENANT, memory_id, query)
        assert {hit.entry.id for hit in hits} <= {entry.id}
    for query in ("snake", "naive", "straße", "東京"):
        assert [hit.entry.id for hit in await service.search(TENANT, memory_id, query)] == [entry.id]


async def test_search_in_postgres_finds_the_same(postgres_url: str) -> None:
    async with direct_memory(postgres_url) as opened:
        service, memory_id = opened.service, await new_memory(opened.service)
        other = await new_memory(service, "other")
        await add(service, other, "the fox of another memory")
        await add(service, memory_id, "a quick brown fox", "a slow dog", "see https://example.com/fox-page, it's good")
        for query in ('"', "fox OR", "memory:x", "fox & dog | !", "a' or 1=1 --", "(((", "'", "\\"):
            await service.search(TENANT, memory_id, query)
        hits = await service.search(TENANT, memory_id, "fox quick")
        assert hits[0].entry.text == "a quick brown fox"
        assert {hit.entry.text[:5] for hit in hits} == {"a qui", "see h"}
        assert (await service.await_commit(TENANT, memory_id, 1)).state is CommitState.COMMITTED


async def test_processes_without_a_file_keep_one_order(postgres_url: str) -> None:
    async with direct_memory(postgres_url) as first, direct_memory(postgres_url) as second:
        memory_id = await new_memory(first.service)
        calls = [
            service.add_entry(TENANT, memory_id, NewEntry(f"{name} {number}"))
            for number in range(50)
            for name, service in (("first", first.service), ("second", second.service))
        ]
        entries = await asyncio.gather(*calls)
        assert sorted(entry.seq for entry in entries) == list(range(2, 102))
        found = await texts_of(second.service, memory_id)
        for name in ("first", "second"):
            assert [text for text in found if text.startswith(name)] == [f"{name} {number}" for number in range(50)]


async def test_a_damaged_file_is_refused_if_it_is_the_only_copy(tmp_path: Path) -> None:
    async with local_memory(tmp_path) as opened:
        memory_id = await new_memory(opened.service)
        await opened.service.add_entries(TENANT, memory_id, [NewEntry("x" * 500) for _ in range(100)])
        path = connections(opened).writer.path
    damage(path)
    with pytest.raises(MemoryFileBroken, match="only copy"):
        async with local_memory(tmp_path):
            pass
    assert path.exists()


def damage(path: Path) -> None:
    """Overwrite pages in the middle of a file."""
    connection = sqlite3.connect(path)
    connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
    data = bytearray(path.read_bytes())
    middle = (len(data) // 2) // 4096 * 4096
    data[middle : middle + 4096 * 8] = b"\xa5" * (4096 * 8)
    path.write_bytes(bytes(data))


async def test_a_damaged_file_is_set_aside_with_a_report_and_read_from_postgres_again(
    postgres_url: str, tmp_path: Path
) -> None:
    """Weakness 9: the recovery plan restored rows that were never anywhere else."""
    path = tmp_path / "memory.db"
    async with memory_node(postgres_url, path) as node:
        memory_id = await new_memory(node.service)
        await node.service.add_entries(TENANT, memory_id, [NewEntry(f"{number} {'x' * 500}") for number in range(100)])
        await node.service.await_commit(TENANT, memory_id, 30)
    # An operation that was acknowledged and not replicated.
    connection = sqlite3.connect(path)
    connection.execute(
        "insert into memory_ops (memory_id, seq, op_id, fingerprint, kind, subject, state, attempts, created_at) "
        "values (?, 999, 'op_lost', '', 'add_entry', 'entry_lost', 'pending', 0, 0)",
        (memory_id,),
    )
    connection.commit()
    connection.close()
    damage(path)
    async with memory_node(postgres_url, path) as node:
        status = await node.service.status()
        (report,) = status.set_aside
        text = await asyncio.to_thread(Path(report).read_text)
        assert "op_lost" in text or '"complete": false' in text
        assert len(await texts_of(node.service, memory_id)) == 100
        await add(node.service, memory_id, "after")
        assert (await texts_of(node.service, memory_id))[-1] == "after"


async def test_a_full_disk_acknowledges_nothing_and_recovers(tmp_path: Path) -> None:
    async with local_memory(tmp_path) as opened:
        service, memory_id = opened.service, await new_memory(opened.service)
        await add(service, memory_id, "before")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        log = connections(opened).writer.path.with_name(connections(opened).writer.path.name + "-wal")
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 4096, hard))
        try:
            entries = [NewEntry(f"lost {number} {'x' * 1000}") for number in range(50)]
            with pytest.raises((StorageFull, Unavailable)):
                await service.add_entries(TENANT, memory_id, entries)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert await texts_of(service, memory_id) == ["before"]
        await add(service, memory_id, "after")
        assert await texts_of(service, memory_id) == ["before", "after"]


async def test_a_full_database_file_is_507(opened: OpenMemory) -> None:
    file: LocalFile = connections(opened).writer
    service, memory_id = opened.service, await new_memory(opened.service)
    await add(service, memory_id, "before")
    await file._thread.submit(lambda: file._open_connection().execute("pragma max_page_count=1").fetchone())
    entries = [NewEntry("x" * 5000) for _ in range(100)]
    with pytest.raises(StorageFull):
        await service.add_entries(TENANT, memory_id, entries)
    await file._thread.submit(lambda: file._open_connection().execute("pragma max_page_count=1000000").fetchone())
    await add(service, memory_id, "after")
    assert await texts_of(service, memory_id) == ["before", "after"]


async def test_a_commit_that_fails_fails_every_change_of_its_batch(opened: OpenMemory) -> None:
    """Two small changes and a large one, for which the file has no space, are written by one commit."""
    file, service, memory_id = connections(opened).writer, opened.service, await new_memory(opened.service)
    await file._thread.submit(lambda: file._open_connection().execute("pragma max_page_count=1").fetchone())
    batches = [[NewEntry("small")], [NewEntry("x" * 5000) for _ in range(100)], [NewEntry("small")]]
    commits: list[set[str]] = []
    opened.storage.writer.on_committed(commits.append)
    calls = [service.add_entries(TENANT, memory_id, batch) for batch in batches]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert len(commits) == 1
    assert [type(result) for result in results] == [StorageFull] * 3
    assert await texts_of(service, memory_id) == []


async def test_the_file_is_synchronous_by_default(opened: OpenMemory, tmp_path: Path) -> None:
    """Weakness 8: NORMAL was described as durable."""
    file = connections(opened).writer
    assert await file._thread.submit(lambda: file._open_connection().execute("pragma synchronous").fetchone()[0]) == 2
    async with local_memory(tmp_path / "other", memory_synchronous="normal") as other:
        fast = connections(other).writer
        level = await fast._thread.submit(lambda: fast._open_connection().execute("pragma synchronous").fetchone()[0])
        assert level == 1


async def test_replicated_copies_that_are_not_used_leave_the_file(postgres_url: str, tmp_path: Path) -> None:
    async with memory_node(postgres_url, tmp_path / "memory.db", memory_copies=1) as node:
        first, second = await new_memory(node.service, "first"), await new_memory(node.service, "second")
        for memory_id in (first, second):
            await add(node.service, memory_id, "one")
            await node.service.await_commit(TENANT, memory_id, 30)
        assert node.cleanup is not None
        await node.cleanup.clean()
        file = connections(node).writer
        copies = await file._thread.submit(
            lambda: [row[0] for row in file._open_connection().execute("select id from memories").fetchall()]
        )
        assert copies == [second]
        # The memory is read from Postgres, and copied again by the next change.
        assert await texts_of(node.service, first) == ["one"]
        await add(node.service, first, "two")
        assert await texts_of(node.service, first) == ["one", "two"]
