"""Waiting for commits, and what other processes see: the promises that a flag on each row could not keep."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from runlane.bus.memory import MemoryBus
from runlane.domain.ids import new_id
from runlane.domain.memory import CommitState, Memory, NewEntry
from runlane.errors import Conflict, MemoryOwnedElsewhere, NotFound
from runlane.store.memory import administration
from runlane.store.memory.ownership import read_memory
from runlane.store.sql.database import Session
from runlane.store.sql.statement import Statement
from tests.chaos.proxy import Proxy
from tests.faults import Fault, FaultyDatabase
from tests.harness import eventually
from tests.memory import TENANT, add, check_log, direct_memory, local_memory, memory_node, new_memory, texts_of


async def test_await_commit_waits_for_deletes(postgres_url: str, tmp_path: Path) -> None:
    """Weakness 1: a deleted row could not be counted, so its delete was reported as committed before it was."""
    async with Proxy(postgres_url) as proxy, memory_node(proxy.url, tmp_path / "memory.db") as node:
        service = node.service
        memory_id = await new_memory(service)
        entry = (await add(service, memory_id, "secret"))[0]
        assert (await service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        proxy.refuse()
        await service.delete_entry(TENANT, memory_id, entry.id)
        result = await service.await_commit(TENANT, memory_id, 0.05)
        assert (result.state, result.seq, result.committed_seq) == (CommitState.TIMEOUT, entry.seq + 1, entry.seq)
        proxy.accept()
        assert (await service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        with pytest.raises(NotFound):
            await service.get_entry(TENANT, memory_id, entry.id, consistency="committed")


async def test_await_commit_ends_under_steady_writes(postgres_url: str, tmp_path: Path) -> None:
    """Weakness 2: waiting until nothing waits never ended while a client kept writing."""
    async with memory_node(postgres_url, tmp_path / "memory.db") as node:
        service, stopped = node.service, asyncio.Event()
        memory_id = await new_memory(service)

        async def write() -> None:
            while not stopped.is_set():
                await service.add_entry(TENANT, memory_id, NewEntry("more"))

        writers = [asyncio.create_task(write()) for _ in range(4)]
        try:
            for _ in range(5):
                accepted = await service.add_entry(TENANT, memory_id, NewEntry("mine"))
                result = await service.await_commit(TENANT, memory_id, 60)
                assert result.state is CommitState.COMMITTED
                assert result.committed_seq >= accepted.seq
        finally:
            stopped.set()
            await asyncio.gather(*writers)


async def test_a_new_memory_is_listed_by_every_process_at_once(postgres_url: str, tmp_path: Path) -> None:
    """Weakness 6: a list was read from the database while the memory was still in the file of one process."""
    async with (
        memory_node(postgres_url, tmp_path / "a.db") as one,
        memory_node(postgres_url, tmp_path / "b.db") as other,
    ):
        memory_id = await new_memory(one.service)
        for service in (one.service, other.service):
            assert [memory.id for memory in await service.list_memories(TENANT)] == [memory_id]


async def test_await_commit_in_another_process_does_not_report_what_it_cannot_see(
    postgres_url: str, tmp_path: Path
) -> None:
    """Weakness 18: a barrier on the queue of the calling process meant nothing for changes of another one."""
    async with (
        Proxy(postgres_url) as proxy,
        memory_node(proxy.url, tmp_path / "a.db", memory_node_url="http://a") as one,
    ):
        memory_id = await new_memory(one.service)
        await add(one.service, memory_id, "first")
        assert (await one.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        proxy.refuse()
        await add(one.service, memory_id, "waits")
        async with memory_node(postgres_url, tmp_path / "b.db") as other:
            with pytest.raises(MemoryOwnedElsewhere) as refused:
                await other.service.await_commit(TENANT, memory_id, 0.1)
            assert refused.value.owner_url == "http://a"
            assert await texts_of(other.service, memory_id) == ["first"]
        proxy.accept()
        assert (await one.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED


@pytest.mark.parametrize("mode", ["direct", "replicated"])
async def test_await_commit_in_another_process_waits_for_what_the_owner_has_accepted(
    postgres_url: str, tmp_path: Path, mode: str
) -> None:
    """The owner releases the memory once the database has everything, and may take it again at once."""
    bus = MemoryBus()
    async with (
        Proxy(postgres_url) as proxy,
        memory_node(proxy.url, tmp_path / "a.db", bus) as one,
        direct_memory(postgres_url, bus)
        if mode == "direct"
        else memory_node(postgres_url, tmp_path / "b.db", bus) as other,
    ):
        memory_id = await new_memory(one.service)
        await add(one.service, memory_id, "first")
        assert (await one.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        proxy.refuse()
        await add(one.service, memory_id, "waits")
        waiting = asyncio.create_task(other.service.await_commit(TENANT, memory_id, 60))
        proxy.accept()
        result = await waiting
        assert (result.state, result.seq, result.committed_seq) == (CommitState.COMMITTED, 3, 3)
        assert await texts_of(other.service, memory_id, consistency="committed") == ["first", "waits"]
        row = await read_memory(one.storage.shared, memory_id)
        assert row is not None
        assert row["requested_by"] is None
        await add(one.service, memory_id, "later")
        assert await texts_of(one.service, memory_id) == ["first", "waits", "later"]


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_COMMIT])
async def test_a_change_whose_commit_is_in_doubt_has_one_effect(postgres_url: str, fault: Fault) -> None:
    """The connection breaks during a commit: with or without a key, each change is stored once."""
    async with direct_memory(postgres_url) as opened:
        service, writer = opened.service, opened.storage.writer
        memory_id = await new_memory(service)
        first, second, third = await add(service, memory_id, "first", "second", "third")
        faulty = FaultyDatabase(writer._database, [fault])
        writer._database = faulty
        added, batch, _, corrected, tagged, fragment = await asyncio.gather(
            service.add_entry(TENANT, memory_id, NewEntry("keyed"), idempotency_key="key-1"),
            service.add_entries(TENANT, memory_id, [NewEntry("one"), NewEntry("two")]),
            service.delete_entry(TENANT, memory_id, first.id),
            service.correct_entry(TENANT, memory_id, second.id, NewEntry("second, corrected"), "it was wrong"),
            service.set_tags(TENANT, memory_id, third.id, {"kind": "fact"}),
            service.put_fragment(TENANT, memory_id, "context", "what matters"),
        )
        assert faulty.seen == [fault, Fault.NONE]
        assert await texts_of(service, memory_id) == ["second", "third", "keyed", "one", "two", "second, corrected"]
        assert (added.seq, [entry.seq for entry in batch], corrected.seq, fragment.seq) == (5, [6, 7], 9, 11)
        assert (corrected.corrects, tagged.tags, fragment.content) == (second.id, {"kind": "fact"}, "what matters")
        assert (await service.await_commit(TENANT, memory_id, 5)).seq == 11
        await check_log(opened.storage.shared, memory_id)


@pytest.mark.parametrize("mode", ["local", "direct", "replicated"])
async def test_a_key_that_extends_the_key_of_a_batch_is_another_key(
    postgres_url: str, tmp_path: Path, mode: str
) -> None:
    async with (
        local_memory(tmp_path)
        if mode == "local"
        else direct_memory(postgres_url)
        if mode == "direct"
        else memory_node(postgres_url, tmp_path / "memory.db") as opened
    ):
        service, memory_id = opened.service, await new_memory(opened.service)
        two = [NewEntry("one"), NewEntry("two")]
        await service.add_entries(TENANT, memory_id, two, idempotency_key="step")
        await service.add_entry(TENANT, memory_id, NewEntry("three"), idempotency_key="step.1")
        await service.add_entry(TENANT, memory_id, NewEntry("four"), idempotency_key="job.1")
        for _ in range(2):
            added = await service.add_entries(TENANT, memory_id, two, idempotency_key="job")
            assert [entry.seq for entry in added] == [6, 7]
        with pytest.raises(Conflict, match='key "step" was used before'):
            await service.add_entry(TENANT, memory_id, NewEntry("other"), idempotency_key="step")
        assert (await service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        assert await texts_of(service, memory_id, consistency="committed") == [
            "one",
            "two",
            "three",
            "four",
            "one",
            "two",
        ]


async def test_a_vault_is_not_deleted_while_a_memory_is_put_into_it(postgres_url: str) -> None:
    async with direct_memory(postgres_url) as opened:
        service, database = opened.service, opened.storage.shared
        vault = await service.create_vault(TENANT, "work")
        begun, release = asyncio.Event(), asyncio.Event()

        async def held(_session: Session) -> None:
            begun.set()
            await release.wait()

        new = Memory(new_id("mem"), TENANT, vault.id, "notes", "notes", "", 0, 1)
        creation = asyncio.create_task(administration.create_memory(database, new, held))
        await begun.wait()
        deletion = asyncio.create_task(service.delete_vault(TENANT, vault.id))

        async def deletion_waits() -> bool:
            waiting = Statement("test_locks", text("select count(*) as waiting from pg_locks where not granted"))
            return deletion.done() or (await database.query(waiting))[0]["waiting"] > 0

        await eventually(deletion_waits, "the deletion waits for the creation, or has ended")
        release.set()
        assert (await creation).id == new.id
        with pytest.raises(Conflict, match="has memories"):
            await deletion
        other = await service.create_vault(TENANT, "other")
        await service.delete_vault(TENANT, other.id)
        with pytest.raises(NotFound, match="vault"):
            await service.move_memory(TENANT, new.id, other.id)
        with pytest.raises(NotFound, match="vault"):
            await administration.create_memory(database, replace(new, vault_id=other.id), no_check)


async def no_check(_session: Session) -> None:
    return None
