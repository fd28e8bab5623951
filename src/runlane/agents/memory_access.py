"""MemoryAccess: the operations on a tenant's memories that agents use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from runlane.domain.memory import EntryPage, MemoryEntry, MemoryFragment, MemoryHit, NewEntry


class MemoryAccess(Protocol):
    """The memories of a run's tenant.

    A change with an idempotency key is applied once, however often it is repeated.
    """

    async def find_or_create(self, vault: str, title: str) -> str:
        """Return the id of the memory with this title."""
        ...

    async def add(self, memory_id: str, entry: NewEntry, key: str) -> MemoryEntry:
        """Add an entry."""
        ...

    async def correct(self, memory_id: str, entry_id: str, entry: NewEntry, reason: str, key: str) -> MemoryEntry:
        """Add an entry that corrects another one."""
        ...

    async def delete(self, memory_id: str, entry_id: str, key: str) -> None:
        """Delete an entry."""
        ...

    async def search(self, memory_id: str, query: str, limit: int) -> Sequence[MemoryHit]:
        """Return the entries that match a query, best first."""
        ...

    async def newest(self, memory_id: str, limit: int) -> EntryPage:
        """Return the newest entries."""
        ...

    async def fragment(self, memory_id: str, name: str) -> MemoryFragment:
        """Return a document of the memory."""
        ...

    async def put_fragment(self, memory_id: str, name: str, content: str, key: str) -> MemoryFragment:
        """Write a document of the memory."""
        ...
