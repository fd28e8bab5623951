"""Open the memory of a process at its first use: most processes never need it, and its modules take time to load."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from runlane.bus import Bus
from runlane.domain.quota import MEMORIES, QuotaUse
from runlane.settings import Settings
from runlane.store.sql.database import Database

if TYPE_CHECKING:
    from runlane.llm.providers import Values
    from runlane.memory.indexing import MemoryIndex
    from runlane.memory.opening import OpenMemory
    from runlane.memory.service import MemoryService

T = TypeVar("T")


class MemoryOpener:
    """The memory of a process, for one event loop."""

    def __init__(
        self, settings: Settings, database: Database, secrets: Values, bus: Bus, on_change: Callable[[str, str], None]
    ) -> None:
        self._settings = settings
        self._database = database
        self._secrets = secrets
        self._bus = bus
        self._on_change = on_change
        self._opened: OpenMemory | None = None
        self._lock = asyncio.Lock()

    async def service(self) -> MemoryService:
        """Return the memory, opened if need be."""
        return (await self._open()).service

    async def index(self) -> MemoryIndex | None:
        """Return the index of embeddings, or None if no embedding model is set."""
        return (await self._open()).storage.index

    async def with_use(self, tenant: str, uses: Sequence[QuotaUse]) -> Sequence[QuotaUse]:
        """Return the quotas of a tenant with what is counted in the memory file, if that is the only copy."""
        limited = any(use.name == MEMORIES and use.limit is not None for use in uses)
        if not limited or self._settings.memory_mode_in_force != "local":
            return uses
        from runlane.store.memory.quotas import with_file_use

        return await with_file_use(uses, (await self._open()).storage.reader, tenant)

    async def delete_tenant(self, tenant: str, delete: Callable[[], Awaitable[T]]) -> T:
        """Call `delete`, which deletes a tenant in the database, and delete its vaults and users in the memory file.

        Raise Conflict if the tenant has memories. Without a file that is their only copy, `delete` checks that itself.
        """
        if self._settings.memory_mode_in_force != "local" or not self._settings.memory_file.exists():
            return await delete()
        from runlane.store.memory.tenants import drop_memory, require_no_memories

        file = (await self._open()).storage.shared
        await file.transact(lambda session: require_no_memories(session, tenant))
        deleted = await delete()
        await file.transact(lambda session: drop_memory(session, tenant))
        return deleted

    async def _open(self) -> OpenMemory:
        async with self._lock:
            if self._opened is None:
                from runlane.memory.opening import open_memory

                self._opened = await open_memory(self._settings, self._database, self._secrets, self._bus)
                self._opened.service.on_change = self._on_change
        return self._opened

    async def start(self) -> None:
        """Open the memory now if this process replicates, so that operations that are left in the file are sent."""
        if self._settings.memory_mode_in_force == "replicated":
            await self.service()

    async def close(self) -> None:
        """Write all queued changes, then close. Safe to call twice."""
        async with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                await opened.close()

    def forget(self) -> None:
        """Release the file after the event loop that used it was closed."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.forget()
