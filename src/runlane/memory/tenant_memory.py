"""The memory of one tenant: MemoryService without the tenant in every call, with the methods of `Client.memory`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Final

from runlane.domain.memory import (
    DEFAULT_MEMORY_TYPE,
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
    MemoryUser,
    NewEntry,
    Vault,
)
from runlane.domain.time_zones import DEFAULT_ZONE
from runlane.errors import InvalidRequest
from runlane.memory.service import MemoryService

_PAGE: Final = 1000


class TenantMemory:
    """Memory of one tenant, in this process. `audit` records operations on whole memories, by their names."""

    def __init__(
        self, service: MemoryService, tenant: str, audit: Callable[[str, str], Awaitable[None]] | None = None
    ) -> None:
        self._service = service
        self._tenant = tenant
        self._audit = audit or _unrecorded

    async def create_user(
        self, user_id: str, email: str, *, display_name: str = "", time_zone: str = DEFAULT_ZONE
    ) -> MemoryUser:
        """Create a user."""
        return await self._service.create_user(
            self._tenant, user_id, email, display_name=display_name, time_zone=time_zone
        )

    async def get_user(self, user_id: str) -> MemoryUser:
        """Return a user."""
        return await self._service.get_user(self._tenant, user_id)

    async def create_vault(self, title: str, *, description: str = "", user_id: str = "") -> Vault:
        """Create a vault."""
        return await self._service.create_vault(self._tenant, title, description=description, user_id=user_id)

    async def list_vaults(self) -> AsyncGenerator[Vault]:
        """Yield the vaults by id."""
        after = None
        while page := await self._service.list_vaults(self._tenant, after=after, limit=_PAGE):
            for vault in page:
                yield vault
            after = page[-1].id

    async def get_vault(self, vault_id: str) -> Vault:
        """Return a vault."""
        return await self._service.get_vault(self._tenant, vault_id)

    async def delete_vault(self, vault_id: str) -> None:
        """Delete an empty vault."""
        await self._service.delete_vault(self._tenant, vault_id)

    async def create_memory(
        self,
        title: str,
        *,
        vault_id: str | None = None,
        memory_type: str = DEFAULT_MEMORY_TYPE,
        description: str = "",
    ) -> Memory:
        """Create a memory."""
        return await self._service.create_memory(
            self._tenant, title, vault_id=vault_id, memory_type=memory_type, description=description
        )

    async def list_memories(self, *, vault_id: str | None = None) -> AsyncGenerator[Memory]:
        """Yield the memories by id."""
        after = None
        while page := await self._service.list_memories(self._tenant, vault_id=vault_id, after=after, limit=_PAGE):
            for memory in page:
                yield memory
            after = page[-1].id

    async def get_memory(self, memory_id: str) -> Memory:
        """Return a memory."""
        return await self._service.get_memory(self._tenant, memory_id)

    async def move_memory(self, memory_id: str, vault_id: str) -> Memory:
        """Move a memory to another vault."""
        return await self._service.move_memory(self._tenant, memory_id, vault_id)

    async def delete_memory(self, memory_id: str) -> None:
        """Delete a memory with everything in it."""
        await self._service.delete_memory(
            self._tenant, memory_id, record=lambda: self._audit("memory.delete", memory_id)
        )

    async def add_entry(self, memory_id: str, entry: NewEntry, *, idempotency_key: str | None = None) -> MemoryEntry:
        """Add an entry."""
        return await self._service.add_entry(self._tenant, memory_id, entry, idempotency_key=idempotency_key)

    async def add_entries(
        self, memory_id: str, entries: Sequence[NewEntry], *, idempotency_key: str | None = None
    ) -> Sequence[MemoryEntry]:
        """Add entries, all or none."""
        return await self._service.add_entries(self._tenant, memory_id, entries, idempotency_key=idempotency_key)

    async def correct_entry(
        self, memory_id: str, entry_id: str, entry: NewEntry, reason: str, *, idempotency_key: str | None = None
    ) -> MemoryEntry:
        """Add an entry that corrects another one."""
        return await self._service.correct_entry(
            self._tenant, memory_id, entry_id, entry, reason, idempotency_key=idempotency_key
        )

    async def delete_entry(self, memory_id: str, entry_id: str, *, idempotency_key: str | None = None) -> None:
        """Delete an entry."""
        await self._service.delete_entry(self._tenant, memory_id, entry_id, idempotency_key=idempotency_key)

    async def set_tags(
        self, memory_id: str, entry_id: str, tags: Mapping[str, str], *, idempotency_key: str | None = None
    ) -> MemoryEntry:
        """Replace the tags of an entry."""
        return await self._service.set_tags(self._tenant, memory_id, entry_id, tags, idempotency_key=idempotency_key)

    async def list_entries(
        self,
        memory_id: str,
        *,
        limit: int = 25,
        before: int | None = None,
        after: int | None = None,
        consistency: Consistency = "local",
    ) -> EntryPage:
        """Return a page of entries."""
        return await self._service.list_entries(
            self._tenant, memory_id, limit=limit, before=before, after=after, consistency=consistency
        )

    async def get_entry(self, memory_id: str, entry_id: str, *, consistency: Consistency = "local") -> MemoryEntry:
        """Return an entry."""
        return await self._service.get_entry(self._tenant, memory_id, entry_id, consistency=consistency)

    async def put_fragment(
        self, memory_id: str, name: str, content: str, *, idempotency_key: str | None = None
    ) -> MemoryFragment:
        """Write a fragment."""
        return await self._service.put_fragment(self._tenant, memory_id, name, content, idempotency_key=idempotency_key)

    async def get_fragment(self, memory_id: str, name: str, *, consistency: Consistency = "local") -> MemoryFragment:
        """Return a fragment."""
        return await self._service.get_fragment(self._tenant, memory_id, name, consistency=consistency)

    async def delete_fragment(self, memory_id: str, name: str, *, idempotency_key: str | None = None) -> None:
        """Delete a fragment."""
        await self._service.delete_fragment(self._tenant, memory_id, name, idempotency_key=idempotency_key)

    async def manifest(self, memory_id: str, *, consistency: Consistency = "local") -> Sequence[FragmentInfo]:
        """Return the fragments without their content."""
        return await self._service.manifest(self._tenant, memory_id, consistency=consistency)

    async def search(
        self, memory_id: str, query: str, *, limit: int = 10, consistency: Consistency = "local"
    ) -> Sequence[MemoryHit]:
        """Return the entries that match the words of a query."""
        return await self._service.search(self._tenant, memory_id, query, limit=limit, consistency=consistency)

    async def await_commit(self, memory_id: str, timeout: float = 10.0) -> MemoryCommit:
        """Wait until the changes before this call are in the database."""
        return await self._service.await_commit(self._tenant, memory_id, timeout)

    async def status(self) -> MemoryNodeStatus:
        """Return how this process stores memory."""
        return await self._service.status()

    async def retry_parked(self, memory_id: str) -> None:
        """Replicate the operations of a parked memory again."""
        await self._service.retry_parked(self._tenant, memory_id)

    async def discard_parked(self, memory_id: str) -> MemoryOp:
        """Drop the rejected operation of a parked memory."""
        await self._audit("memory.discard", memory_id)
        return await self._service.discard_parked(self._tenant, memory_id)

    async def export_memory(self, memory_id: str) -> MemoryExport:
        """Return everything of a memory."""
        return await self._service.export_memory(self._tenant, memory_id)

    async def export_tenant(self) -> AsyncGenerator[MemoryTenantExport]:
        """Yield everything of the tenant, one memory at a time."""
        after = None
        while True:
            page = await self._service.export_tenant(self._tenant, after=after)
            yield page
            after = page.next_cursor
            if after is None:
                return

    async def delete_tenant(self, confirm: str) -> None:
        """Delete every vault, memory and user of the tenant, which `confirm` names."""
        if confirm != self._tenant:
            raise InvalidRequest(f'confirm="{confirm}" does not name the tenant "{self._tenant}". Nothing was deleted.')
        await self._audit("memory.delete_all", self._tenant)
        await self._service.delete_tenant(self._tenant)


async def _unrecorded(_action: str, _subject: str) -> None:
    """Record nothing: a program that opens memory without an app has no actor."""
