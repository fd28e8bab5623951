"""Replication of memory: per-memory order, ownership, parked memories, and what a crash leaves behind."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from runlane.domain.memory import CommitState, MemoryOpKind, NewEntry
from runlane.errors import Conflict, MemoryOwnedElsewhere, NotFound, Unavailable
from runlane.memory import replication_pace
from runlane.memory.opening import OpenMemory
from runlane.store.memory.local_log import waiting_ops
from runlane.store.memory.salvage import set_aside
from tests.chaos.proxy import Proxy
from tests.harness import eventually
from tests.memory import TENANT, add, check_log, direct_memory, memory_node, neighbours, new_memory, texts_of


@pytest.fixture
async def node(postgres_url: str, tmp_path: Path) -> AsyncGenerator[OpenMemory]:
    async with memory_node(postgres_url, tmp_path / "a" / "memory.db") as opened:
        yield opened


async def execute(url: str, statement: str) -> None:
    connection = await cast("Any", asyncpg).connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def test_changes_reach_the_database_in_order_and_once(node: OpenMemory) -> None:
    service = node.service
    memory_id = await new_memory(service)
    added = await add(service, memory_id, *(f"entry {number}" for number in range(50)))
    await service.delete_entry(TENANT, memory_id, added[0].id)
    await service.correct_entry(TENANT, memory_id, added[1].id, NewEntry("entry 1, corrected"), "it was wrong")
    await service.set_tags(TENANT, memory_id, added[2].id, {"kind": "fact"})
    await service.put_fragment(TENANT, memory_id, "context", "what matters")
    result = await service.await_commit(TENANT, memory_id, 30)
    assert (result.state, result.committed_seq) == (CommitState.COMMITTED, result.seq)
    expected = [*(f"entry {number}" for number in range(1, 50)), "entry 1, corrected"]
    assert await texts_of(service, memory_id) == expected
    assert await texts_of(service, memory_id, consistency="committed") == expected
    corrected = await service.get_entry(TENANT, memory_id, added[1].id, consistency="committed")
    assert corrected.corrected_by is not None
    assert (await service.get_entry(TENANT, memory_id, added[2].id, consistency="committed")).tags == {"kind": "fact"}
    fragment = await service.get_fragment(TENANT, memory_id, "context", consistency="committed")
    assert fragment.content == "what matters"
    assert node.node is not None
    await check_log(node.node.remote, memory_id)


async def test_an_acknowledged_change_is_seen_by_a_local_read_before_it_is_replicated(
    postgres_url: str, tmp_path: Path
) -> None:
    """Weakness 7: reads after an add did not see it until it was replicated."""
    async with Proxy(postgres_url) as proxy, memory_node(proxy.url, tmp_path / "memory.db") as node:
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "first")
        assert (await node.service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
        proxy.refuse()
        (added,) = await add(node.service, memory_id, "second")
        assert not added.synced
        assert await texts_of(node.service, memory_id) == ["first", "second"]
        page = await node.service.list_entries(TENANT, memory_id)
        assert [(entry.text, entry.synced) for entry in page.entries] == [("second", False), ("first", True)]
        waited = await node.service.await_commit(TENANT, memory_id, 0.05)
        assert (waited.state, waited.seq, waited.committed_seq) == (CommitState.TIMEOUT, 3, 2)
        proxy.accept()
        assert (await node.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED


async def test_a_rejected_operation_parks_its_memory_and_no_other_of_its_shard(
    copied_postgres: str, tmp_path: Path
) -> None:
    """Weaknesses 4, 15 and 22: a poison row stalled every memory of its shard, or left a hole."""
    check = "alter table memory_entries add constraint no_poison check (text not like '%poison%')"
    await execute(copied_postgres, check)
    async with memory_node(copied_postgres, tmp_path / "memory.db") as node:
        service = node.service
        assert node.node is not None
        bad, good = await neighbours(service)
        await add(service, bad, "before", "poison", "after")
        await add(service, good, "one", "two")
        assert (await service.await_commit(TENANT, good, 30)).state is CommitState.COMMITTED
        result = await service.await_commit(TENANT, bad, 30)
        assert result.state is CommitState.REJECTED
        assert result.rejected is not None
        assert (result.rejected.seq, result.rejected.kind) == (3, MemoryOpKind.ADD)
        assert "no_poison" in (result.rejected.error or "")
        assert await texts_of(service, bad, consistency="committed") == ["before"]
        (parked,) = await node.node.parked()
        assert (parked.memory_id, parked.waiting, parked.superseded) == (bad, 2, False)
        # The memory still accepts changes, which wait behind the rejected one.
        await add(service, bad, "later")
        assert (await service.await_commit(TENANT, bad, 30)).state is CommitState.REJECTED

        await execute(copied_postgres, "alter table memory_entries drop constraint no_poison")
        await node.node.retry(TENANT, bad)
        assert (await service.await_commit(TENANT, bad, 30)).state is CommitState.COMMITTED
        assert await texts_of(service, bad, consistency="committed") == ["before", "poison", "after", "later"]
        await check_log(node.node.remote, bad)


async def test_a_database_that_refuses_every_operation_parks_no_memory(copied_postgres: str, tmp_path: Path) -> None:
    """A table or a permission is missing, so no operation is to blame."""
    async with memory_node(copied_postgres, tmp_path / "memory.db") as node:
        service, memory_id = node.service, await new_memory(node.service)
        await add(service, memory_id, "one")
        assert (await service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        await execute(copied_postgres, "alter table memory_ops rename to elsewhere")
        await add(service, memory_id, "two")
        assert (await service.await_commit(TENANT, memory_id, 1)).state is CommitState.TIMEOUT
        assert (await service.status()).parked == []
        await execute(copied_postgres, "alter table elsewhere rename to memory_ops")
        assert (await service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        assert await texts_of(service, memory_id, consistency="committed") == ["one", "two"]


async def test_a_discarded_operation_leaves_no_gap_and_no_trace(copied_postgres: str, tmp_path: Path) -> None:
    check = "alter table memory_fragments add constraint no_poison check (content not like '%poison%')"
    await execute(copied_postgres, check)
    async with memory_node(copied_postgres, tmp_path / "memory.db") as node:
        service = node.service
        assert node.node is not None
        memory_id = await new_memory(service)
        await service.put_fragment(TENANT, memory_id, "context", "good")
        await service.put_fragment(TENANT, memory_id, "context", "poison")
        await add(service, memory_id, "after")
        assert (await service.await_commit(TENANT, memory_id, 30)).state is CommitState.REJECTED
        discarded = await node.node.discard(TENANT, memory_id)
        assert discarded.seq == 3
        assert (await service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
        await check_log(node.node.remote, memory_id)

        async def restored() -> bool:
            return (await service.get_fragment(TENANT, memory_id, "context")).content == "good"

        await eventually(restored, "the local copy is read again")
        assert await texts_of(service, memory_id) == ["after"]


async def test_a_restarted_node_replicates_what_it_had_acknowledged(postgres_url: str, tmp_path: Path) -> None:
    """Weakness 19: a restart lost acknowledged writes."""
    path = tmp_path / "memory.db"
    async with Proxy(postgres_url) as proxy:
        async with memory_node(proxy.url, path) as node:
            memory_id = await new_memory(node.service)
            await add(node.service, memory_id, "one")
            proxy.refuse()
            await add(node.service, memory_id, "two", "three")
        proxy.accept()
        async with memory_node(proxy.url, path) as node:
            assert (await node.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
            assert await texts_of(node.service, memory_id, consistency="committed") == ["one", "two", "three"]


async def test_one_node_owns_a_memory_and_the_others_name_it(postgres_url: str, tmp_path: Path) -> None:
    """Weakness 5: two processes that wrote to one memory had no order."""
    url = "http://node-a:8765"
    async with (
        memory_node(postgres_url, tmp_path / "a.db", memory_node_url=url) as first,
        memory_node(postgres_url, tmp_path / "b.db") as second,
        direct_memory(postgres_url) as third,
    ):
        memory_id = await new_memory(first.service)
        await add(first.service, memory_id, "of the owner")
        for other in (second, third):
            with pytest.raises(MemoryOwnedElsewhere) as refused:
                await add(other.service.forwarding(lambda _error: True), memory_id, "of another process")
            assert refused.value.owner_url == url
            with pytest.raises(MemoryOwnedElsewhere):
                await other.service.forwarding(lambda _error: True).await_commit(TENANT, memory_id, 1)
        await first.service.await_commit(TENANT, memory_id, 30)
        # Others read what is committed.
        assert await texts_of(second.service, memory_id) == ["of the owner"]
        assert await texts_of(third.service, memory_id) == ["of the owner"]
        await first.close()
        await add(second.service, memory_id, "after the owner left")
        assert await texts_of(second.service, memory_id) == ["of the owner", "after the owner left"]


async def test_operations_of_a_superseded_node_are_kept_apart_until_an_operator_decides(
    postgres_url: str, tmp_path: Path
) -> None:
    async with Proxy(postgres_url) as proxy, memory_node(proxy.url, tmp_path / "a.db", memory_lease_seconds=2) as first:
        assert first.node is not None
        memory_id = await new_memory(first.service)
        await add(first.service, memory_id, "a1")
        await first.service.await_commit(TENANT, memory_id, 30)
        proxy.refuse()
        await add(first.service, memory_id, "a2")

        async def refuses() -> bool:
            try:
                await first.service.add_entry(TENANT, memory_id, NewEntry("a3"))
            except Unavailable:
                return True
            return False

        await eventually(refuses, "the lease of the cut-off node ends")
        async with memory_node(postgres_url, tmp_path / "b.db") as second:

            async def taken() -> bool:
                try:
                    await add(second.service, memory_id, "b1")
                except MemoryOwnedElsewhere:
                    return False
                return True

            await eventually(taken, "the other node owns the memory")
            await second.service.await_commit(TENANT, memory_id, 30)
        proxy.accept()

        async def parked() -> Any:
            return await first.node.parked() if first.node is not None else None

        (found,) = await eventually(parked, "the operations of the first node are parked")
        assert found.superseded
        assert (await first.service.await_commit(TENANT, memory_id, 5)).state is CommitState.REJECTED
        with pytest.raises(Conflict, match="not replicated"):
            await add(first.service, memory_id, "a4")
        assert await texts_of(first.service, memory_id, consistency="committed") == ["a1", "b1"]
        await first.node.retry(TENANT, memory_id)
        assert (await first.service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
        committed = await texts_of(first.service, memory_id, consistency="committed")
        assert committed[:3] == ["a1", "b1", "a2"]
        assert await texts_of(first.service, memory_id) == committed
        await check_log(first.node.remote, memory_id)


async def test_a_node_that_is_not_ours_cannot_see_or_change_a_memory_of_another_tenant(node: OpenMemory) -> None:
    memory_id = await new_memory(node.service)
    for call in (
        node.service.add_entry("other", memory_id, NewEntry("x")),
        node.service.list_entries("other", memory_id),
        node.service.await_commit("other", memory_id, 1),
        node.service.manifest("other", memory_id),
        node.service.delete_memory("other", memory_id),
        node.service.search("other", memory_id, "x"),
    ):
        with pytest.raises(NotFound):
            await call


async def test_an_idempotency_key_has_one_effect_also_on_another_node(postgres_url: str, tmp_path: Path) -> None:
    """Weakness 21: a timed-out request that was sent again doubled the entry."""
    async with memory_node(postgres_url, tmp_path / "a.db") as first:
        memory_id = await new_memory(first.service)
        calls = [
            first.service.add_entry(TENANT, memory_id, NewEntry("once"), idempotency_key="key-1") for _ in range(5)
        ]
        ids = {entry.id for entry in await asyncio.gather(*calls)}
        assert len(ids) == 1
        with pytest.raises(Conflict, match="another request"):
            await first.service.add_entry(TENANT, memory_id, NewEntry("other"), idempotency_key="key-1")
    async with memory_node(postgres_url, tmp_path / "b.db") as second:
        again = await second.service.add_entry(TENANT, memory_id, NewEntry("once"), idempotency_key="key-1")
        assert {again.id} == ids
        assert await texts_of(second.service, memory_id) == ["once"]


async def test_a_deleted_memory_parks_what_its_owner_had_not_replicated(postgres_url: str, tmp_path: Path) -> None:
    async with Proxy(postgres_url) as proxy, memory_node(proxy.url, tmp_path / "a.db", memory_lease_seconds=2) as first:
        assert first.node is not None
        memory_id = await new_memory(first.service)
        await add(first.service, memory_id, "one")
        await first.service.await_commit(TENANT, memory_id, 30)
        proxy.refuse()
        await add(first.service, memory_id, "two")
        async with direct_memory(postgres_url) as other:

            async def deleted() -> bool:
                try:
                    await other.service.delete_memory(TENANT, memory_id)
                except MemoryOwnedElsewhere:
                    return False
                return True

            await eventually(deleted, "the lease of the owner ends")
        proxy.accept()

        async def parked() -> Any:
            return await first.node.parked() if first.node is not None else None

        await eventually(parked, "the memory is parked")
        await first.node.discard(TENANT, memory_id)
        assert (await first.node.status()).pending == 0


async def test_entries_that_change_before_they_are_replicated_arrive_as_they_were_added(
    postgres_url: str, tmp_path: Path
) -> None:
    """An entry without an idempotency key is logged by its row alone, until the row changes."""
    async with Proxy(postgres_url) as proxy, memory_node(proxy.url, tmp_path / "memory.db") as node:
        service, memory_id = node.service, await new_memory(node.service)
        await add(service, memory_id, "replicated")
        assert (await service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
        proxy.refuse()
        tagged, deleted, plain = await service.add_entries(
            TENANT, memory_id, [NewEntry("tagged"), NewEntry("deleted"), NewEntry("plain")]
        )
        keyed = await service.add_entry(TENANT, memory_id, NewEntry("keyed"), idempotency_key="one")
        await service.set_tags(TENANT, memory_id, tagged.id, {"kind": "number"})
        await service.set_tags(TENANT, memory_id, keyed.id, {"kind": "key"})
        await service.delete_entry(TENANT, memory_id, deleted.id)
        assert node.node is not None
        ops = await waiting_ops(node.node.reader, memory_id)
        added = [(op.seq, op.subject, op.entry[3]) for op in ops if op.entry is not None]
        assert added == [
            (3, tagged.id, "tagged"),
            (4, deleted.id, "deleted"),
            (5, plain.id, "plain"),
            (6, keyed.id, "keyed"),
        ]
        assert [op.entry[6] for op in ops if op.entry is not None] == ["{}"] * 4
        proxy.accept()
        assert (await service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        page = await service.list_entries(TENANT, memory_id, after=0, consistency="committed")
        assert [(entry.text, dict(entry.tags)) for entry in page.entries] == [
            ("replicated", {}),
            ("tagged", {"kind": "number"}),
            ("plain", {}),
            ("keyed", {"kind": "key"}),
        ]
        await check_log(node.node.remote, memory_id)
        assert await waiting_ops(node.node.reader, memory_id) == []


async def test_a_file_that_is_set_aside_reports_every_operation_that_was_not_replicated(
    postgres_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "memory.db"
    async with Proxy(postgres_url) as proxy, memory_node(proxy.url, path) as node:
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "replicated")
        assert (await node.service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
        proxy.refuse()
        (entry,) = await add(node.service, memory_id, "waits")
        await node.service.put_fragment(TENANT, memory_id, "context", "waits")
        assert node.replicator is not None
        await node.replicator.stop(0)
        copy = tmp_path / "copy.db"
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    _, report = set_aside(copy, ["damaged"])
    lost = json.loads(report.read_text())["not_replicated"]
    assert [(op["seq"], op["kind"], op["subject"]) for op in lost] == [
        (3, "add_entry", entry.id),
        (4, "put_fragment", "context"),
    ]


async def test_a_wait_for_a_commit_ends_the_pause_of_replication(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replication that lets other callers go first for an hour: await_commit and a stop replicate at once."""
    for name in ("GATHER_SECONDS", "PAUSE_SECONDS"):
        monkeypatch.setattr(replication_pace, name, 3600.0)
    async with memory_node(postgres_url, tmp_path / "memory.db") as node:
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "one")
        assert (await node.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        await add(node.service, memory_id, "two")
        assert (await node.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        assert await texts_of(node.service, memory_id, consistency="committed") == ["one", "two"]
        await add(node.service, memory_id, "three")
    async with direct_memory(postgres_url) as other:
        assert await texts_of(other.service, memory_id) == ["one", "two", "three"]
