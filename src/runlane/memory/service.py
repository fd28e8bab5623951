"""MemoryService: the operations on memories, for the API, for agents and for Python programs.

A change is acknowledged when it is durable: in the memory file, or in the database if the process has no file. A read
waits for the changes that this process accepted before it. With `consistency="committed"` it reads from the database.
Vaults and memories themselves are created in the shared database, on a separate path, so that the traffic of agents
cannot delay people.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, TypeVar, cast

import orjson

from runlane.domain.ids import new_id, new_ids
from runlane.domain.memory import (
    MAX_ENTRY_PAGE,
    MAX_QUERY_CHARACTERS,
    MAX_REASON,
    MAX_SEARCH_HITS,
    CommitState,
    Consistency,
    EntryPage,
    FragmentInfo,
    Memory,
    MemoryCommit,
    MemoryEntry,
    MemoryExport,
    MemoryFragment,
    MemoryHit,
    MemoryNodeStatus,
    MemoryOp,
    MemoryTenantExport,
    NewEntry,
)
from runlane.domain.text import check_text
from runlane.errors import InvalidRequest, MemoryOwnedElsewhere, NotFound
from runlane.memory import bounds
from runlane.memory.indexing import CANDIDATES, fuse
from runlane.memory.modes import MemoryStorage, OwnerNode
from runlane.memory.vaults import MemoryVaults
from runlane.store.memory import reading
from runlane.store.memory.ownership import check_not_owned
from runlane.store.memory.reading import EntryRange
from runlane.store.memory.requests import (
    KEY_PREFIX,
    AddEntries,
    CorrectEntry,
    DeleteEntry,
    DeleteFragment,
    PutFragment,
    SetEntryTags,
)
from runlane.store.memory.vectors import entries_by_id
from runlane.store.sql.database import Database

T = TypeVar("T")

_EXPORTED_AT_ONCE: Final = 200
_MAX_NUMBER: Final = 2**62


class MemoryService(MemoryVaults):
    """Memories of tenants. Every method takes the tenant of the caller and returns nothing of other tenants."""

    def __init__(self, storage: MemoryStorage, clock: Callable[[], int] | None = None) -> None:
        super().__init__(storage, clock or _now_us)

    async def add_entry(
        self, tenant: str, memory_id: str, entry: NewEntry, *, idempotency_key: str | None = None
    ) -> MemoryEntry:
        """Add an entry. It is stored when this returns."""
        return (await self.add_entries(tenant, memory_id, [entry], idempotency_key=idempotency_key))[0]

    async def add_entries(
        self,
        tenant: str,
        memory_id: str,
        entries: Sequence[NewEntry],
        *,
        idempotency_key: str | None = None,
        expired: bool = False,
    ) -> Sequence[MemoryEntry]:
        """Add at most 100 entries, all or none, in their order; with `expired`, also those whose expiry has passed."""
        now = self._clock()
        checked = bounds.check_entries(tuple(entries), 0 if expired else now)
        # Ids are created here and not by the writer: the two threads would wait for the lock of their source.
        ids = tuple(new_ids("entry", len(checked)))
        keys = _keys(idempotency_key, ids[0], "add", checked)
        answer = await self._change(AddEntries(tenant, memory_id, *keys, now, checked, ids))
        return cast("tuple[MemoryEntry, ...]", answer)

    async def correct_entry(
        self,
        tenant: str,
        memory_id: str,
        entry_id: str,
        entry: NewEntry,
        reason: str,
        *,
        idempotency_key: str | None = None,
    ) -> MemoryEntry:
        """Add an entry that corrects another one. An entry is corrected at most once."""
        now = self._clock()
        bounds.check_entry(entry, now)
        check_text(reason, "The reason of the correction", MAX_REASON)
        new_entry_id = new_id("entry")
        keys = _keys(idempotency_key, new_entry_id, "correct", (entry_id, entry, reason))
        request = CorrectEntry(tenant, memory_id, *keys, now, entry_id, entry, reason, new_entry_id)
        answer = await self._change(request)
        return cast("tuple[MemoryEntry, ...]", answer)[0]

    async def delete_entry(
        self, tenant: str, memory_id: str, entry_id: str, *, idempotency_key: str | None = None
    ) -> None:
        """Delete the content of an entry. Deleting it again does nothing."""
        keys = _keys(idempotency_key, None, "delete", entry_id)
        await self._change(DeleteEntry(tenant, memory_id, *keys, self._clock(), entry_id))

    async def set_tags(
        self,
        tenant: str,
        memory_id: str,
        entry_id: str,
        tags: Mapping[str, str],
        *,
        idempotency_key: str | None = None,
    ) -> MemoryEntry:
        """Replace the tags of an entry."""
        bounds.check_tags(tags)
        keys = _keys(idempotency_key, None, "tags", (entry_id, tags))
        answer = await self._change(SetEntryTags(tenant, memory_id, *keys, self._clock(), entry_id, tags))
        return cast("tuple[MemoryEntry, ...]", answer)[0]

    async def put_fragment(
        self, tenant: str, memory_id: str, name: str, content: str, *, idempotency_key: str | None = None
    ) -> MemoryFragment:
        """Write a fragment, such as `context`. The last write wins."""
        digest, size = bounds.check_fragment(name, content)
        keys = _keys(idempotency_key, None, "put", (name, digest))
        answer = await self._change(PutFragment(tenant, memory_id, *keys, self._clock(), name, content, digest, size))
        return cast("MemoryFragment", answer)

    async def delete_fragment(
        self, tenant: str, memory_id: str, name: str, *, idempotency_key: str | None = None
    ) -> None:
        """Delete a fragment other than `context`."""
        keys = _keys(idempotency_key, None, "drop", name)
        await self._change(DeleteFragment(tenant, memory_id, *keys, self._clock(), name))

    async def list_entries(
        self,
        tenant: str,
        memory_id: str,
        *,
        limit: int = 25,
        before: int | None = None,
        after: int | None = None,
        before_us: int | None = None,
        after_us: int | None = None,
        consistency: Consistency = "local",
    ) -> EntryPage:
        """Return entries, newest first; with `after`, the number of an entry, those after it, oldest first."""
        if not 1 <= limit <= MAX_ENTRY_PAGE:
            raise InvalidRequest(f"limit={limit} is not valid. Use 1 to {MAX_ENTRY_PAGE}.")
        for name, number in (("before", before), ("after", after)):
            if number is not None and not 0 <= number <= _MAX_NUMBER:
                raise InvalidRequest(f"{name}={number} is not valid. Use the number of an entry.")
        wanted = EntryRange(limit, before, after, before_us, after_us)
        return await self._read(
            memory_id, consistency, lambda database: reading.list_entries(database, tenant, memory_id, wanted)
        )

    async def get_entry(
        self, tenant: str, memory_id: str, entry_id: str, *, consistency: Consistency = "local"
    ) -> MemoryEntry:
        """Return an entry."""
        return await self._read(
            memory_id, consistency, lambda database: reading.get_entry(database, tenant, memory_id, entry_id)
        )

    async def get_fragment(
        self, tenant: str, memory_id: str, name: str, *, consistency: Consistency = "local"
    ) -> MemoryFragment:
        """Return a fragment with its content."""
        return await self._read(
            memory_id, consistency, lambda database: reading.get_fragment(database, tenant, memory_id, name)
        )

    async def manifest(
        self, tenant: str, memory_id: str, *, consistency: Consistency = "local"
    ) -> Sequence[FragmentInfo]:
        """Return the fragments of a memory by name, without their content."""
        return await self._read(
            memory_id, consistency, lambda database: reading.read_manifest(database, tenant, memory_id)
        )

    async def search(
        self, tenant: str, memory_id: str, query: str, *, limit: int = 10, consistency: Consistency = "local"
    ) -> Sequence[MemoryHit]:
        """Return the entries that match a query, best first: by words, and with an embedding model by meaning."""
        check_text(query, "The query", MAX_QUERY_CHARACTERS)
        if not 1 <= limit <= MAX_SEARCH_HITS:
            raise InvalidRequest(f"limit={limit} is not valid. Use 1 to {MAX_SEARCH_HITS}.")
        index = self._storage.index
        count = limit if index is None else max(limit, CANDIDATES)

        async def by_words(database: Database) -> Sequence[tuple[MemoryEntry, float]]:
            return await self._storage.search(database, tenant, memory_id, query, count)

        found = await self._read(memory_id, consistency, by_words)
        # This search follows the search by words, which checks that the memory belongs to the tenant.
        near = [] if index is None else await index.nearest(tenant, memory_id, query)
        if not near:
            return [MemoryHit(entry, score, ("text",)) for entry, score in found[:limit]]
        entries = await self._read(
            memory_id, consistency, lambda database: entries_by_id(database, tenant, memory_id, near)
        )
        return fuse(found, near, entries, limit)

    async def await_commit(self, tenant: str, memory_id: str, timeout: float) -> MemoryCommit:
        """Wait until the changes of a memory that were accepted before this call are in the database.

        The result is committed, timeout or rejected. Later changes do not delay it. If another node owns the memory, it
        is requested: its owner releases it once the database has everything that the owner has accepted.
        """
        storage, deadline = self._storage, time.monotonic() + timeout
        try:
            if storage.node is not None:
                return await storage.node.await_commit(tenant, memory_id, timeout)
            await storage.barrier(memory_id)
            return await self._committed(tenant, memory_id)
        except MemoryOwnedElsewhere as error:
            if self._forwards(error) or not await storage.request(memory_id, deadline - time.monotonic()):
                raise
        head = await reading.read_head(storage.shared, tenant, memory_id)
        await storage.withdraw(memory_id)
        return MemoryCommit(CommitState.COMMITTED, head.last_seq, head.last_seq)

    async def _committed(self, tenant: str, memory_id: str) -> MemoryCommit:
        """Return the committed state. Raise if a node owns the memory, because it may have accepted more."""
        head = await reading.read_head(self._storage.reader, tenant, memory_id)
        if self._storage.requests is not None:
            await check_not_owned(self._storage.shared, memory_id)
        return MemoryCommit(CommitState.COMMITTED, head.last_seq, head.last_seq)

    await_consistency = await_commit

    async def export_memory(self, tenant: str, memory_id: str) -> MemoryExport:
        """Return the whole memory, including changes that this process has not replicated."""
        memory = await self.get_memory(tenant, memory_id)
        entries = [entry async for page in self.entry_pages(tenant, memory_id) for entry in page]
        return MemoryExport(memory, entries, [item async for item in self.fragments(tenant, memory_id)])

    async def entry_pages(self, tenant: str, memory_id: str) -> AsyncGenerator[Sequence[MemoryEntry]]:
        """Return all entries of a memory, oldest first, a page at a time."""
        after = 0
        while page := (await self.list_entries(tenant, memory_id, after=after, limit=_EXPORTED_AT_ONCE)).entries:
            yield page
            after = page[-1].seq

    async def fragments(self, tenant: str, memory_id: str) -> AsyncGenerator[MemoryFragment]:
        """Return all fragments of a memory with their content, by name."""
        for info in await self.manifest(tenant, memory_id):
            yield await self.get_fragment(tenant, memory_id, info.name)

    async def export_tenant(self, tenant: str, *, after: str | None = None) -> MemoryTenantExport:
        """Return all memories of a tenant, one per page; the first page also contains its users and vaults."""
        page, memory = await self.export_page(tenant, after=after)
        return page if memory is None else replace(page, memory=await self.export_memory(tenant, memory.id))

    async def export_page(self, tenant: str, *, after: str | None = None) -> tuple[MemoryTenantExport, Memory | None]:
        """Return a page of the export of a tenant without its memory, and that memory."""
        users, vaults = await self._tenant_parts(tenant) if after is None else ((), ())
        found = await self.list_memories(tenant, after=after, limit=2)
        following = found[0].id if len(found) > 1 else None
        return MemoryTenantExport(users, vaults, None, following), found[0] if found else None

    async def status(self) -> MemoryNodeStatus:
        """Return the storage mode of this process and its replication backlog."""
        storage = self._storage
        if storage.node is not None:
            return await storage.node.status()
        return MemoryNodeStatus(storage.mode, None, storage.path, 0, None, (), None, ())

    async def retry_parked(self, tenant: str, memory_id: str) -> None:
        """Retry the operations of a parked memory; superseded operations are appended with new numbers."""
        await self._node(memory_id).retry(tenant, memory_id)

    async def discard_parked(self, tenant: str, memory_id: str) -> MemoryOp:
        """Discard the rejected operation of a parked memory, or all pending ones if it was superseded.

        Return the first.
        """
        return await self._node(memory_id).discard(tenant, memory_id)

    def _node(self, memory_id: str) -> OwnerNode:
        node = self._storage.node
        if node is None:
            raise NotFound(f'The memory "{memory_id}" is not parked: this process does not replicate.')
        return node

    async def _change(self, request: Any) -> Any:
        storage = self._storage

        async def write() -> Any:
            if storage.node is not None:
                await storage.node.own(request.tenant, request.memory_id)
            return await storage.shards.submit(request.memory_id, request)

        answer = await self._taking(request.memory_id, write)
        self.on_change(request.tenant, request.memory_id)
        return answer

    async def _read(self, memory_id: str, consistency: Consistency, work: Callable[[Database], Awaitable[T]]) -> T:
        storage = self._storage
        node = storage.node
        if node is not None and (consistency == "committed" or not await node.reads_here(memory_id)):
            return await work(node.remote)
        await storage.barrier(memory_id)
        try:
            answer = await work(storage.reader)
        except NotFound:
            if node is None or await node.reads_here(memory_id):
                raise
        else:
            if node is None or await node.reads_here(memory_id):
                return answer
        # The copy has left the file during the read, or another process may have taken the memory.
        return await work(node.remote)


def _now_us() -> int:
    return time.time_ns() // 1000


def _keys(key: str | None, unique: str | None, *parts: Any) -> tuple[str, str, bool]:
    """Return the operation id, the fingerprint of the request, and whether the id is the caller's key.

    `unique` is an id that belongs only to this request, if it has one.
    """
    if key is None:
        return unique or new_id("op"), "", False
    bounds.check_key(key)
    text = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
    return f"{KEY_PREFIX}{key}", sha256(text).hexdigest(), True
