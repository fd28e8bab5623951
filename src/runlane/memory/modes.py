"""The three modes in which a process stores memory, and their resources.

- local: the file is the only copy. For one host without Postgres; its processes share the file.
- replicated: the file acknowledges, and a replicator sends its operations to Postgres. One process per file.
- direct: no file. Every change is committed to Postgres before it is acknowledged; for processes without a volume.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from runlane.domain.memory import MemoryCommit, MemoryEntry, MemoryNodeStatus, MemoryOp
from runlane.memory.indexing import MemoryIndex
from runlane.memory.requesting import MemoryRequests
from runlane.memory.shards import Shards
from runlane.memory.word_indexing import WordIndexing
from runlane.memory.writer import MemoryWriter
from runlane.store.memory.search import search_text
from runlane.store.sql.database import Database


class OwnerNode(Protocol):
    """The additional part of the mode `replicated`: ownership of memories, and their replication."""

    @property
    def id(self) -> str: ...

    @property
    def remote(self) -> Database: ...

    async def reads_here(self, memory_id: str) -> bool:
        """Return whether reads of the memory use the local copy."""
        ...

    async def own(self, tenant: str, memory_id: str) -> None:
        """Acquire the memory if necessary, and bring the local copy up to date."""
        ...

    async def may_request(self, memory_id: str) -> bool:
        """Return whether the memory may be requested from its owner."""
        ...

    async def forget(self, memory_id: str) -> None:
        """Drop the local copy of a memory that is deleted."""
        ...

    async def await_commit(self, tenant: str, memory_id: str, timeout: float) -> MemoryCommit:
        """Wait until the changes accepted before the call are replicated."""
        ...

    async def retry(self, tenant: str, memory_id: str) -> None:
        """Replicate the operations of a parked memory again."""
        ...

    async def discard(self, tenant: str, memory_id: str) -> MemoryOp:
        """Drop the rejected operation of a parked memory."""
        ...

    async def status(self) -> MemoryNodeStatus:
        """Return the replication backlog."""
        ...


@dataclass(slots=True)
class MemoryStorage:
    """The open databases of a process and its writer.

    `shared` is the database in which every process sees vaults and memories.
    """

    mode: str
    shared: Database
    reader: Database
    shards: Shards
    writer: MemoryWriter
    node: OwnerNode | None = None
    index: MemoryIndex | None = None
    path: str | None = None
    # The database of runs and quotas; the same as `shared` unless memory is only in a file.
    runs: Database | None = None
    # The index of words of the file, if there is one; the database has its own.
    words: WordIndexing | None = None
    # Without this field, memories of other nodes are not requested.
    requests: MemoryRequests | None = None

    async def barrier(self, memory_id: str) -> None:
        """Wait for the changes of a memory that were accepted before this call."""
        if not self.shards.is_idle(memory_id):
            await self.shards.submit(memory_id, None)

    async def search(
        self, database: Database, tenant: str, memory_id: str, query: str, limit: int
    ) -> Sequence[tuple[MemoryEntry, float]]:
        """Search the entries of a memory by words, including entries of all changes that are committed."""
        if self.words is None or database is not self.reader:
            return await search_text(database, tenant, memory_id, query, limit)
        await self.words.catch_up()
        recreations = self.words.recreations
        try:
            return await search_text(database, tenant, memory_id, query, limit)
        except sqlite3.DatabaseError as error:
            await self.words.search_failed(error, recreations)
        await self.words.catch_up()
        return await search_text(database, tenant, memory_id, query, limit)

    async def request(self, memory_id: str, seconds: float) -> bool:
        """Request a memory from its owner; return whether this process may take it now."""
        if self.requests is None or seconds <= 0:
            return False
        if self.node is not None and not await self.node.may_request(memory_id):
            return False
        try:
            await self.requests.wait(memory_id, seconds)
        except TimeoutError:
            return False
        return True

    async def withdraw(self, memory_id: str) -> None:
        """End the request of this process for a memory that it no longer needs."""
        if self.requests is not None:
            await self.requests.withdraw(memory_id)
