"""The memories of a run's tenant, for its agents: opened by the first agent that uses one."""

from __future__ import annotations

from collections.abc import Sequence

from runlane.domain.memory import EntryPage, MemoryEntry, MemoryFragment, MemoryHit, NewEntry
from runlane.errors import Conflict
from runlane.memory.opener import MemoryOpener


class AgentMemories:
    """Implements MemoryAccess with the memory of this process."""

    def __init__(self, opener: MemoryOpener, tenant: str) -> None:
        self._opener = opener
        self._tenant = tenant

    async def find_or_create(self, vault: str, title: str) -> str:
        """Return the id of the memory with this title; create it and its vault if they do not exist."""
        service, tenant = await self._opener.service(), self._tenant
        place = await service.find_vault(tenant, vault)
        if place is None:
            try:
                place = await service.create_vault(tenant, vault)
            except Conflict:
                # Another run created it in between.
                place = await service.find_vault(tenant, vault)
                if place is None:
                    raise
        found = await service.find_memory(tenant, place.id, title)
        if found is None:
            try:
                found = await service.create_memory(tenant, title, vault_id=place.id)
            except Conflict:
                found = await service.find_memory(tenant, place.id, title)
                if found is None:
                    raise
        return found.id

    async def add(self, memory_id: str, entry: NewEntry, key: str) -> MemoryEntry:
        """Add an entry."""
        service = await self._opener.service()
        return await service.add_entry(self._tenant, memory_id, entry, idempotency_key=key)

    async def correct(self, memory_id: str, entry_id: str, entry: NewEntry, reason: str, key: str) -> MemoryEntry:
        """Add an entry that corrects another one."""
        service = await self._opener.service()
        return await service.correct_entry(self._tenant, memory_id, entry_id, entry, reason, idempotency_key=key)

    async def delete(self, memory_id: str, entry_id: str, key: str) -> None:
        """Delete an entry."""
        service = await self._opener.service()
        await service.delete_entry(self._tenant, memory_id, entry_id, idempotency_key=key)

    async def search(self, memory_id: str, query: str, limit: int) -> Sequence[MemoryHit]:
        """Return the entries that match a query, best first."""
        service = await self._opener.service()
        return await service.search(self._tenant, memory_id, query, limit=limit)

    async def newest(self, memory_id: str, limit: int) -> EntryPage:
        """Return the newest entries."""
        service = await self._opener.service()
        return await service.list_entries(self._tenant, memory_id, limit=limit)

    async def fragment(self, memory_id: str, name: str) -> MemoryFragment:
        """Return a document of the memory."""
        service = await self._opener.service()
        return await service.get_fragment(self._tenant, memory_id, name)

    async def put_fragment(self, memory_id: str, name: str, content: str, key: str) -> MemoryFragment:
        """Write a document of the memory."""
        service = await self._opener.service()
        return await service.put_fragment(self._tenant, memory_id, name, content, idempotency_key=key)
