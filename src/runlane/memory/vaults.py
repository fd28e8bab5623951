"""Create, list, move and delete users, vaults and memories, on a path that no shard delays."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Final, Self, TypeVar

from runlane.domain import time_zones
from runlane.domain.ids import new_id
from runlane.domain.memory import DEFAULT_MEMORY_TYPE, DEFAULT_VAULT, Memory, MemoryUser, Vault
from runlane.domain.time_zones import DEFAULT_ZONE
from runlane.errors import Conflict, MemoryOwnedElsewhere, Unavailable
from runlane.memory import bounds
from runlane.memory.modes import MemoryStorage
from runlane.memory.requesting import WAIT_SECONDS
from runlane.store.memory import administration
from runlane.store.memory.handover import MemoryReleased
from runlane.store.memory.quotas import room_for_memory
from runlane.store.sql.database import Database

T = TypeVar("T")

_DELETED_AT_ONCE: Final = 100
_PAGE: Final = 1000


class MemoryVaults:
    """The part of MemoryService that manages users, vaults and memories."""

    def __init__(self, storage: MemoryStorage, clock: Callable[[], int]) -> None:
        self._storage = storage
        self._clock = clock
        # Called with the tenant and the memory after each change, for pages that show them.
        self.on_change: Callable[[str, str], None] = lambda _tenant, _memory_id: None
        self._forwards: Callable[[MemoryOwnedElsewhere], bool] = lambda _error: False

    def forwarding(self, forwards: Callable[[MemoryOwnedElsewhere], bool]) -> Self:
        """Return this service for a caller that forwards changes to the owner of a memory.

        If `forwards` returns True, MemoryOwnedElsewhere is raised at once, and the memory is not requested.
        """
        view = copy(self)
        view._forwards = forwards  # noqa: SLF001 - its own class
        return view

    async def _taking(self, memory_id: str, work: Callable[[], Awaitable[T]]) -> T:
        """Call `work`, which changes a memory. If another node owns the memory, request it for up to ten seconds."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                return await work()
            except MemoryReleased:
                # The memory was handed over before the change was written. The next owner makes the change, or this
                # process makes it after the next owner.
                if time.monotonic() >= deadline:
                    raise
            except MemoryOwnedElsewhere as error:
                if self._forwards(error) or not await self._storage.request(memory_id, deadline - time.monotonic()):
                    raise

    @property
    def _shared(self) -> Database:
        """The database in which every process sees vaults and memories."""
        return self._storage.shared

    async def create_user(
        self, tenant: str, user_id: str, email: str, *, display_name: str = "", time_zone: str = DEFAULT_ZONE
    ) -> MemoryUser:
        """Create a user, whose vaults are separate from those of other users."""
        bounds.check_user(user_id, email)
        time_zones.time_zone(time_zone)
        name = bounds.check_name(display_name)
        return await administration.create_user(self._shared, tenant, user_id, email, name, time_zone, self._clock())

    async def get_user(self, tenant: str, user_id: str) -> MemoryUser:
        """Return a user."""
        return await administration.get_user(self._shared, tenant, user_id)

    async def create_vault(self, tenant: str, title: str, *, description: str = "", user_id: str = "") -> Vault:
        """Create a vault. Its title is unique among the vaults of its user."""
        bounds.check_title(title, "vault")
        bounds.check_description(description)
        if user_id:
            await administration.get_user(self._shared, tenant, user_id)
        return await administration.create_vault(self._shared, tenant, title, description, user_id, self._clock())

    async def list_vaults(self, tenant: str, *, after: str | None = None, limit: int = 100) -> Sequence[Vault]:
        """Return the vaults of a tenant by id."""
        return await administration.list_vaults(self._shared, tenant, after, limit)

    async def get_vault(self, tenant: str, vault_id: str) -> Vault:
        """Return a vault."""
        return await administration.get_vault(self._shared, tenant, vault_id)

    async def find_vault(self, tenant: str, title: str, *, user_id: str = "") -> Vault | None:
        """Return the vault with a title, or None."""
        return await administration.find_vault(self._shared, tenant, title, user_id)

    async def delete_vault(self, tenant: str, vault_id: str) -> None:
        """Delete a vault that has no memories."""
        await administration.delete_vault(self._shared, tenant, vault_id)

    async def create_memory(
        self,
        tenant: str,
        title: str,
        *,
        vault_id: str | None = None,
        memory_type: str = DEFAULT_MEMORY_TYPE,
        description: str = "",
    ) -> Memory:
        """Create a memory with its context. Without a vault it is created in the vault `default` of the tenant."""
        bounds.check_title(title, "memory")
        bounds.check_memory_type(memory_type)
        bounds.check_description(description)
        vault = await (self._default_vault(tenant) if vault_id is None else self.get_vault(tenant, vault_id))
        now = self._clock()
        new = Memory(new_id("mem"), tenant, vault.id, title, memory_type, description, now, 1)
        check = await room_for_memory(self._storage.runs or self._shared, self._shared, tenant)
        created = await administration.create_memory(self._shared, new, check)
        self.on_change(tenant, created.id)
        return created

    async def list_memories(
        self, tenant: str, *, vault_id: str | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[Memory]:
        """Return the memories of a tenant by id.

        While the database is unavailable, only the memories of which this process has a copy are returned.
        """
        try:
            return await administration.list_memories(self._shared, tenant, vault_id, after, limit)
        except Unavailable:
            if self._storage.reader is self._shared:
                raise
            return await administration.list_memories(self._storage.reader, tenant, vault_id, after, limit)

    async def get_memory(self, tenant: str, memory_id: str) -> Memory:
        """Return a memory."""
        return await administration.get_memory(self._shared, tenant, memory_id)

    async def owned_memory(self, tenant: str, memory_id: str) -> Memory | None:
        """Return a memory from the local copy, without the database; None if reads of it do not use the copy."""
        node = self._storage.node
        if node is None or not await node.reads_here(memory_id):
            return None
        return await administration.get_memory(self._storage.reader, tenant, memory_id)

    async def find_memory(self, tenant: str, vault_id: str, title: str) -> Memory | None:
        """Return the memory with a title in a vault, or None."""
        return await administration.find_memory(self._shared, tenant, vault_id, title)

    async def move_memory(self, tenant: str, memory_id: str, vault_id: str) -> Memory:
        """Move a memory to another vault."""
        moved = await administration.move_memory(self._shared, tenant, memory_id, vault_id)
        self.on_change(tenant, memory_id)
        return moved

    async def delete_memory(
        self, tenant: str, memory_id: str, *, record: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Delete a memory with everything in it. `record` is called before, once this process may delete it."""
        await administration.get_memory(self._shared, tenant, memory_id)
        await self._storage.barrier(memory_id)
        node = self._storage.node
        node_id = None if node is None else node.id
        if record is not None:
            await self._taking(memory_id, lambda: administration.require_owner(self._shared, [memory_id], node_id))
            await record()
        await self._taking(
            memory_id, lambda: administration.delete_memories(self._shared, tenant, [memory_id], node_id)
        )
        if node is not None:
            await node.forget(memory_id)
        self.on_change(tenant, memory_id)

    async def _tenant_parts(self, tenant: str) -> tuple[Sequence[MemoryUser], Sequence[Vault]]:
        vaults: list[Vault] = []
        while page := await self.list_vaults(tenant, after=vaults[-1].id if vaults else None, limit=_PAGE):
            vaults += page
        return await administration.list_users(self._shared, tenant), vaults

    async def delete_tenant(self, tenant: str) -> int:
        """Delete every memory, vault and user of a tenant. Return the number of memories.

        Raises if another node owns one of the memories; the earlier ones are then deleted.
        """
        deleted = 0
        while found := await administration.list_memories(self._shared, tenant, None, None, _DELETED_AT_ONCE):
            for memory in found:
                await self.delete_memory(tenant, memory.id)
                deleted += 1
        await administration.delete_tenant(self._shared, tenant)
        return deleted

    async def _default_vault(self, tenant: str) -> Vault:
        found = await self.find_vault(tenant, DEFAULT_VAULT)
        if found is not None:
            return found
        try:
            return await self.create_vault(tenant, DEFAULT_VAULT)
        except Conflict:
            # Another caller created it in between.
            created = await self.find_vault(tenant, DEFAULT_VAULT)
            if created is None:
                raise
            return created
