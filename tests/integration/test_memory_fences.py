"""The fences of memory in the database: owner, epoch, order and tenant, each checked by itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from runlane.domain.memory import CommitState, MemoryOpKind, NewEntry
from runlane.errors import MemoryOwnedElsewhere, NotFound
from runlane.memory.opening import OpenMemory
from runlane.memory.service import MemoryService
from runlane.store.memory.administration import delete_memories
from runlane.store.memory.copying import evict_replicated, replace_copy
from runlane.store.memory.handover import release_requested, request_memory
from runlane.store.memory.operations import PlannedOp
from runlane.store.memory.ownership import KnownCopy, SupersededCopy, acquire, read_memory, release, renew_node
from runlane.store.memory.replication import MemoryVerdict, Verdict, replicate
from runlane.store.memory.retention import purge_expired
from tests.chaos.proxy import Proxy
from tests.harness import eventually
from tests.memory import TENANT, add, direct_memory, memory_node, new_memory, texts_of


@pytest.fixture
async def opened(postgres_url: str) -> AsyncGenerator[OpenMemory]:
    async with direct_memory(postgres_url) as opened:
        yield opened


class Fenced:
    """A memory of the node `a`, with its last operation."""

    def __init__(self, opened: OpenMemory, memory_id: str) -> None:
        self.database = opened.storage.shared
        self.service = opened.service
        self.id = memory_id

    async def own(self, node: str = "a") -> int:
        await renew_node(self.database, node, f"http://{node}", 60)
        return (await acquire(self.database, node, TENANT, self.id, None)).epoch

    async def put(self, node: str, epoch: int, skipped: int = 0) -> Verdict:
        """Replicate a fragment as the next operation but `skipped`."""
        seq = await self.last_seq() + 1 + skipped
        change = {"content": "x", "sha256": "0", "size": 1, "updated_at": 1}
        op = PlannedOp(self.id, seq, f"op_{seq}", "", MemoryOpKind.PUT_FRAGMENT, f"f{seq}", change, 1)
        verdicts: dict[str, MemoryVerdict] = await replicate(self.database, node, {self.id: epoch}, [op])
        return verdicts[self.id].verdict

    async def last_seq(self) -> int:
        return (await self.head())["last_seq"]

    async def head(self) -> Any:
        row = await read_memory(self.database, self.id)
        assert row is not None
        return row


@pytest.fixture
async def fenced(opened: OpenMemory) -> Fenced:
    return Fenced(opened, await new_memory(opened.service))


async def test_operations_of_an_earlier_ownership_are_refused(fenced: Fenced) -> None:
    first = await fenced.own()
    second = await fenced.own()
    before = await fenced.last_seq()
    assert await fenced.put("a", first) is Verdict.SUPERSEDED
    assert await fenced.last_seq() == before
    assert await fenced.put("a", second) is Verdict.APPLIED


async def test_a_released_memory_takes_no_operations(fenced: Fenced) -> None:
    epoch = await fenced.own()
    await release(fenced.database, "a", [fenced.id])
    assert await fenced.put("a", epoch) is Verdict.SUPERSEDED


async def test_operations_after_a_gap_are_refused(fenced: Fenced) -> None:
    epoch = await fenced.own()
    before = await fenced.last_seq()
    assert await fenced.put("a", epoch, skipped=1) is Verdict.GAP
    assert await fenced.last_seq() == before


async def test_a_node_releases_its_own_memories_alone(fenced: Fenced) -> None:
    epoch = await fenced.own()
    await release(fenced.database, "b", [fenced.id])
    assert (await fenced.head())["owner"] == "a"
    assert await fenced.put("a", epoch) is Verdict.APPLIED


async def test_a_memory_is_handed_over_only_with_all_of_its_operations(fenced: Fenced) -> None:
    epoch, last_seq = await fenced.own(), await fenced.last_seq()
    await request_memory(fenced.database, "b", fenced.id)
    # The node has accepted one more that the database does not have.
    assert await release_requested(fenced.database, "a", fenced.id, epoch, last_seq + 1) is None
    assert await release_requested(fenced.database, "a", fenced.id, epoch - 1, last_seq) is None
    assert (await fenced.head())["owner"] == "a"
    assert await release_requested(fenced.database, "a", fenced.id, epoch, last_seq) == "b"


async def test_a_copy_continues_only_after_operations_that_are_all_its_own(fenced: Fenced) -> None:
    epoch, before = await fenced.own(), await fenced.last_seq()
    for _ in range(2):
        assert await fenced.put("a", epoch) is Verdict.APPLIED
    own = {before + 1: f"op_{before + 1}"}
    # The second one is of another process: the copy does not have what it changed.
    with pytest.raises(SupersededCopy):
        await acquire(fenced.database, "a", TENANT, fenced.id, KnownCopy(before, own))
    both = own | {before + 2: f"op_{before + 2}"}
    assert (await acquire(fenced.database, "a", TENANT, fenced.id, KnownCopy(before, both))).continued


async def test_a_tenant_deletes_its_own_memories_alone(fenced: Fenced) -> None:
    assert await delete_memories(fenced.database, "other", [fenced.id]) == 0
    assert (await fenced.head())["id"] == fenced.id
    assert await delete_memories(fenced.database, TENANT, [fenced.id]) == 1


async def test_a_repeated_request_of_another_tenant_finds_no_memory(fenced: Fenced) -> None:
    entry = NewEntry("once")
    await fenced.service.add_entry(TENANT, fenced.id, entry, idempotency_key="key-1")
    for text in ("once", "another"):
        with pytest.raises(NotFound):
            await fenced.service.add_entry("other", fenced.id, NewEntry(text), idempotency_key="key-1")


async def test_what_waits_for_replication_is_neither_purged_nor_evicted_nor_replaced(
    postgres_url: str, tmp_path: Path
) -> None:
    async with Proxy(postgres_url) as proxy, memory_node(proxy.url, tmp_path / "memory.db") as opened:
        service, node = opened.service, opened.node
        assert node is not None
        memory_id = await new_memory(service)
        await add(service, memory_id, "first")
        assert (await service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        head, epoch = await read_memory(node.remote, memory_id), node.epoch_of(memory_id)
        assert head is not None
        assert epoch is not None
        proxy.refuse()
        await add(service, memory_id, "second")
        # By the clock of the file, its time is over.
        past = MemoryService(opened.storage, clock=lambda: 1_000_000)
        await past.add_entry(TENANT, memory_id, NewEntry("short lived", expires_at_us=2_000_000))
        assert await purge_expired(node.file) == 0
        assert not await evict_replicated(node.file, memory_id)
        proxy.accept()
        # The state of before the changes, as a slow reader would bring it.
        assert not await replace_copy(node.remote, node.file, head, epoch)
        assert await texts_of(service, memory_id) == ["first", "second"]
        assert (await service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        assert await texts_of(service, memory_id, consistency="committed") == ["first", "second"]


async def test_a_node_whose_lease_has_lapsed_does_not_trust_its_earlier_ownership(
    postgres_url: str, tmp_path: Path
) -> None:
    """It was frozen, another node has taken a memory, and its lease is renewed before the next change arrives."""
    async with (
        memory_node(postgres_url, tmp_path / "a.db", memory_lease_seconds=2, memory_node_url="http://a") as frozen,
        memory_node(postgres_url, tmp_path / "b.db", memory_node_url="http://b") as other,
    ):
        assert frozen.node is not None
        memory_id = await new_memory(frozen.service)
        await add(frozen.service, memory_id, "a1")
        assert (await frozen.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        await frozen.node.lease.stop()

        async def taken() -> bool:
            try:
                await add(other.service.forwarding(lambda _error: True), memory_id, "b1")
            except MemoryOwnedElsewhere:
                return False
            return True

        await eventually(taken, "the other node owns the memory")
        assert (await other.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        await frozen.node.lease.renew()
        assert await texts_of(frozen.service, memory_id) == ["a1", "b1"]
        with pytest.raises(MemoryOwnedElsewhere):
            await add(frozen.service.forwarding(lambda _error: True), memory_id, "a2")
        assert await frozen.node.parked() == []
