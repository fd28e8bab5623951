"""Handover: a process that needs a memory of a living node gets it, and nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from runlane.bus.memory import MemoryBus
from runlane.domain.memory import CommitState, NewEntry
from runlane.errors import MemoryOwnedElsewhere, NotFound
from runlane.memory import handover, vaults
from runlane.memory.opening import OpenMemory
from runlane.store.memory.handover import MemoryReleased, request_memory
from runlane.store.memory.requests import AddEntries
from tests.chaos.proxy import Proxy
from tests.harness import eventually
from tests.memory import TENANT, add, check_log, direct_memory, memory_node, new_memory, texts_of

AN_HOUR_US = 3_600_000_000


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is not a reason to refuse a change."""
    monkeypatch.setattr(vaults, "WAIT_SECONDS", 60.0)


async def fetch(url: str, query: str, *values: Any) -> list[dict[str, Any]]:
    connection = await cast("Any", asyncpg).connect(url)
    try:
        return [dict(row) for row in await connection.fetch(query, *values)]
    finally:
        await connection.close()


async def row_of(url: str, memory_id: str) -> dict[str, Any]:
    (row,) = await fetch(url, "select owner, epoch, requested_by, requested_at from memories where id = $1", memory_id)
    return row


async def set_request(url: str, memory_id: str, process: str, from_now_us: int) -> None:
    query = (
        "update memories set requested_by = $2, requested_at = extract(epoch from clock_timestamp()) * 1000000 + $3 "
        "where id = $1"
    )
    await fetch(url, query, memory_id, process, from_now_us)


async def written(opened: OpenMemory, memory_id: str, name: str, count: int) -> list[str]:
    """Add entries one after another and return what they contain."""
    texts = [f"{name}{number}" for number in range(count)]
    await add(opened.service, memory_id, *texts)
    return texts


def check_order(stored: Sequence[str], *writers: Sequence[str]) -> None:
    """Check that everything is stored once, and the entries of each writer in its order."""
    assert sorted(stored) == sorted(text for texts in writers for text in texts)
    for texts in writers:
        mine = set(texts)
        assert [text for text in stored if text in mine] == list(texts)


async def test_an_agent_writes_to_a_memory_of_a_node_while_a_person_writes_through_it(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is in a process without a file. The bus announces the requests: no poll is involved."""
    monkeypatch.setattr(handover, "POLL_SECONDS", 600.0)
    bus = MemoryBus()
    async with (
        memory_node(postgres_url, tmp_path / "a.db", bus=bus) as node,
        direct_memory(postgres_url, bus=bus) as worker,
    ):
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "first")
        agent = asyncio.create_task(written(worker, memory_id, "agent", 5))
        person: list[str] = []
        while not agent.done():
            text = f"person{len(person)}"
            await add(node.service, memory_id, text)
            person.append(text)
            # What was acknowledged is read, whichever process owns the memory.
            assert text in await texts_of(node.service, memory_id)
        await add(node.service, memory_id, "last")
        assert (await node.service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
        stored = await texts_of(worker.service, memory_id)
        check_order(stored, ["first", *person, "last"], await agent)
        assert await texts_of(node.service, memory_id) == stored
        assert node.node is not None
        await check_log(node.node.remote, memory_id)
        row = await row_of(postgres_url, memory_id)
        assert (row["owner"], row["requested_by"]) == (node.node.id, None)


async def test_two_nodes_that_write_to_a_memory_hand_it_over_to_each_other(postgres_url: str, tmp_path: Path) -> None:
    """Without a bus, both find requests by polls."""
    async with (
        memory_node(postgres_url, tmp_path / "a.db") as first,
        memory_node(postgres_url, tmp_path / "b.db") as second,
    ):
        memory_id = await new_memory(first.service)
        texts = await asyncio.gather(
            *(written(node, memory_id, name, 3) for node, name in ((first, "a"), (second, "b")))
        )
        again = await asyncio.gather(
            *(written(node, memory_id, name, 3) for node, name in ((first, "c"), (second, "d")))
        )
        for node in (first, second):
            await node.service.add_entry(TENANT, memory_id, NewEntry("once"), idempotency_key="one key")
        stored = await texts_of(second.service, memory_id)
        check_order(stored, *texts, *again, ["once"])
        assert second.node is not None
        assert (await second.service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
        await check_log(second.node.remote, memory_id)
        # A node that handed the memory over does not report what it cannot see.
        with pytest.raises(MemoryOwnedElsewhere):
            await first.service.forwarding(lambda _error: True).await_commit(TENANT, memory_id, 30)
        assert await texts_of(first.service, memory_id) == stored


async def test_a_memory_whose_operations_cannot_be_replicated_stays_with_its_owner(
    copied_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vaults, "WAIT_SECONDS", 2.0)
    check = "alter table memory_entries add constraint no_poison check (text not like '%poison%')"
    await fetch(copied_postgres, check)
    bus = MemoryBus()
    async with (
        memory_node(copied_postgres, tmp_path / "a.db", bus=bus) as node,
        direct_memory(copied_postgres, bus=bus) as other,
    ):
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "one", "poison", "two")
        assert (await node.service.await_commit(TENANT, memory_id, 30)).state is CommitState.REJECTED
        with pytest.raises(MemoryOwnedElsewhere):
            await add(other.service, memory_id, "of another process")
        # Its callers are not delayed.
        await add(node.service, memory_id, "three")
        await fetch(copied_postgres, "alter table memory_entries drop constraint no_poison")
        await node.service.retry_parked(TENANT, memory_id)
        await add(other.service, memory_id, "of another process")
        stored = await texts_of(other.service, memory_id)
        assert stored == ["one", "poison", "two", "three", "of another process"]


async def test_a_node_without_its_database_keeps_its_memories(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vaults, "WAIT_SECONDS", 1.0)
    async with (
        Proxy(postgres_url) as proxy,
        memory_node(proxy.url, tmp_path / "a.db") as node,
        direct_memory(postgres_url) as other,
    ):
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "one")
        assert (await node.service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
        proxy.refuse()
        await add(node.service, memory_id, "two")
        with pytest.raises(MemoryOwnedElsewhere):
            await add(other.service, memory_id, "too early")
        await add(node.service, memory_id, "three")
        proxy.accept()
        monkeypatch.setattr(vaults, "WAIT_SECONDS", 60.0)
        await add(other.service, memory_id, "of another process")
        assert await texts_of(other.service, memory_id) == ["one", "two", "three", "of another process"]


async def test_a_request_of_a_process_that_is_gone_ends_by_itself(postgres_url: str, tmp_path: Path) -> None:
    async with memory_node(postgres_url, tmp_path / "a.db") as node:
        assert node.node is not None
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "one")

        async def released() -> bool:
            found = await request_memory(node.node.remote, "process_gone", memory_id) if node.node else None
            return found is not None and not found.blocked

        await eventually(released, "the memory is released")
        assert (await row_of(postgres_url, memory_id))["owner"] is None
        await add(node.service, memory_id, "two")
        assert (await row_of(postgres_url, memory_id))["owner"] == node.node.id
        assert await texts_of(node.service, memory_id) == ["one", "two"]


async def test_a_released_memory_is_reserved_for_the_process_that_requested_it(
    postgres_url: str, tmp_path: Path
) -> None:
    async with (
        memory_node(postgres_url, tmp_path / "a.db") as node,
        direct_memory(postgres_url) as one,
        direct_memory(postgres_url) as other,
    ):
        assert one.storage.requests is not None
        memory_id = await new_memory(node.service)
        await set_request(postgres_url, memory_id, one.storage.requests.process, AN_HOUR_US)
        for refused in (node, other):
            with pytest.raises(MemoryOwnedElsewhere, match="is reserved for process_"):
                await add(refused.service.forwarding(lambda _error: True), memory_id, "of another process")
        await add(one.service, memory_id, "requested")
        assert (await row_of(postgres_url, memory_id))["requested_by"] is None
        await add(other.service, memory_id, "after it")
        # A request that was not renewed does not count, and is not answered.
        await set_request(postgres_url, memory_id, "process_gone", -AN_HOUR_US)
        await add(node.service, memory_id, "owned")
        row = await row_of(postgres_url, memory_id)
        assert node.node is not None
        assert (row["owner"], row["requested_by"]) == (node.node.id, None)
        assert await texts_of(node.service, memory_id) == ["requested", "after it", "owned"]


async def test_a_request_for_a_memory_that_is_not_owned_any_more_waits_for_nothing(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "POLL_SECONDS", 600.0)
    async with direct_memory(postgres_url) as other:
        async with memory_node(postgres_url, tmp_path / "a.db") as node:
            memory_id = await new_memory(node.service)
            await add(node.service, memory_id, "one")
            waiting = asyncio.create_task(add(other.service, memory_id, "two"))

            async def requested() -> bool:
                return (await row_of(postgres_url, memory_id))["requested_by"] is not None

            await eventually(requested, "the memory is requested")
        await waiting
        assert await texts_of(other.service, memory_id) == ["one", "two"]
        row = await row_of(postgres_url, memory_id)
        assert (row["owner"], row["requested_by"]) == (None, None)


async def test_a_restarted_node_replicates_before_it_hands_over(postgres_url: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with Proxy(postgres_url) as proxy, direct_memory(postgres_url) as other:
        async with memory_node(proxy.url, path) as node:
            memory_id = await new_memory(node.service)
            await add(node.service, memory_id, "one")
            assert (await node.service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
            proxy.refuse()
            await add(node.service, memory_id, "two", "three")
        proxy.accept()
        async with memory_node(proxy.url, path):
            await add(other.service, memory_id, "four")
            assert await texts_of(other.service, memory_id) == ["one", "two", "three", "four"]


async def test_a_node_hands_over_what_it_owns_and_has_not_acquired_since_its_start(
    postgres_url: str, tmp_path: Path
) -> None:
    async with memory_node(postgres_url, tmp_path / "a.db") as node, direct_memory(postgres_url) as other:
        assert node.node is not None
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "one")
        assert (await node.service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
        node.node.lost(memory_id)
        await add(other.service, memory_id, "two")
        assert await texts_of(other.service, memory_id) == ["one", "two"]


async def test_a_change_that_meets_a_handover_is_made_afterwards(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change may wait for space in its shard while its memory is released: it must not be written then."""
    async with memory_node(postgres_url, tmp_path / "a.db") as opened:
        node = opened.node
        assert node is not None
        memory_id = await new_memory(opened.service)
        await add(opened.service, memory_id, "one")
        own, released = node.own, asyncio.Event()

        async def own_and_release(tenant: str | None, memory: str) -> None:
            await own(tenant, memory)
            if not released.is_set():
                released.set()
                await set_request(postgres_url, memory, "process_gone", AN_HOUR_US)
                assert await node.hand_over(memory, 30) == "process_gone"

        monkeypatch.setattr(node, "own", own_and_release)
        await add(opened.service, memory_id, "two")
        assert released.is_set()
        assert (await opened.service.await_commit(TENANT, memory_id, 30)).state is CommitState.COMMITTED
        assert await texts_of(opened.service, memory_id, consistency="committed") == ["one", "two"]


async def test_changes_during_a_handover_wait_until_it_is_over(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node has to release exactly what the database has, so nothing is written while it waits for replication."""
    async with memory_node(postgres_url, tmp_path / "a.db") as opened:
        node = opened.node
        assert node is not None
        memory_id = await new_memory(opened.service)
        await add(opened.service, memory_id, "one")
        await set_request(postgres_url, memory_id, "process_gone", AN_HOUR_US)
        reached, go_on = asyncio.Event(), asyncio.Event()
        release = node._release_requested

        async def hold(memory: str) -> str | None:
            reached.set()
            await go_on.wait()
            return await release(memory)

        monkeypatch.setattr(node, "_release_requested", hold)
        await reached.wait()
        late = asyncio.create_task(add(opened.service, memory_id, "two"))
        # One that has passed the check of the owner before, and waited for space in its shard since.
        owned = AddEntries(TENANT, memory_id, "op", "", False, 1, (NewEntry("never"),), ("entry_never",))
        with pytest.raises(MemoryReleased):
            await opened.storage.shards.submit(memory_id, owned)
        # Other memories of the node are changed meanwhile.
        await add(opened.service, await new_memory(opened.service, "other"), "not delayed")
        assert await texts_of(opened.service, memory_id) == ["one"]
        assert not late.done()
        go_on.set()
        await late
        assert await texts_of(opened.service, memory_id) == ["one", "two"]


async def test_a_memory_of_another_tenant_is_not_requested(postgres_url: str, tmp_path: Path) -> None:
    async with memory_node(postgres_url, tmp_path / "a.db") as node, direct_memory(postgres_url) as other:
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "one")
        for call in (
            other.service.add_entry("other", memory_id, NewEntry("x")),
            other.service.delete_memory("other", memory_id),
        ):
            with pytest.raises(NotFound):
                await call
        row = await row_of(postgres_url, memory_id)
        assert node.node is not None
        assert (row["owner"], row["requested_at"]) == (node.node.id, None)


async def test_a_memory_of_another_node_is_deleted(postgres_url: str, tmp_path: Path) -> None:
    async with memory_node(postgres_url, tmp_path / "a.db") as node, direct_memory(postgres_url) as other:
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "one")
        await other.service.delete_memory(TENANT, memory_id)
        with pytest.raises(NotFound):
            await add(node.service, memory_id, "two")
        assert (await node.service.status()).pending == 0
