"""Keep a memory file small: expired entries, old operation ids, copies that the database has, or has no longer.

Only replicated data is deleted. A deleted copy is read from the database again when it is used. The copy of a memory
that another process has deleted leaves the file as well.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from runlane.errors import RunlaneError
from runlane.memory.node import MemoryNode
from runlane.memory.word_indexing import WordIndexing
from runlane.settings import Settings
from runlane.store.memory import retention
from runlane.store.memory.local_file import LocalFile

log = structlog.get_logger(__name__)

_EVICTED_AT_ONCE: Final = 50
_COMPARED_AT_ONCE: Final = 5_000
# The share of copies that is deleted when the file is too large.
_EVICTED_SHARE: Final = 0.1


class MemoryFileCleanup:
    """Deletes from one file at intervals, with start() and stop().

    An error is logged, and the next interval retries.
    """

    def __init__(
        self, settings: Settings, file: LocalFile, words: WordIndexing, node: MemoryNode | None = None
    ) -> None:
        self._settings = settings
        self._file = file
        self._words = words
        self._node = node
        # The copy up to which was compared with the database.
        self._compared = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the loop."""
        self._task = asyncio.create_task(self._run(), name="memory-cleanup")

    async def stop(self) -> None:
        """Stop. Safe at any time: each deletion is a transaction."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.retention_seconds)
            try:
                await self.clean()
            except RunlaneError as error:
                log.warning("memory_retention_failed", problem=str(error))

    async def clean(self) -> None:
        """Delete what is due."""
        while await retention.purge_expired(self._file) == retention.PURGED_AT_ONCE:
            pass
        while (
            await retention.prune_ops(self._file, self._settings.memory_idempotency_hours) == retention.PURGED_AT_ONCE
        ):
            pass
        if self._node is not None:
            await self._evict(self._node)
            await self._evict_deleted(self._node)

    async def _evict(self, node: MemoryNode) -> None:
        settings = self._settings
        idle = await retention.idle_copies(self._file, settings.memory_copy_days, _EVICTED_AT_ONCE)
        copies = await retention.count_copies(self._file)
        surplus = max(0, copies - settings.memory_copies)
        if await self._file.used_bytes() + await self._words.used_bytes() > settings.memory_copy_bytes:
            surplus = max(surplus, round(copies * _EVICTED_SHARE), 1)
        oldest = await retention.oldest_copies(self._file, min(surplus, _EVICTED_AT_ONCE)) if surplus else ()
        for memory_id in dict.fromkeys((*idle, *oldest)):
            await node.give_back(memory_id)

    async def _evict_deleted(self, node: MemoryNode) -> None:
        copies = await retention.replicated_copies(self._file, self._compared, _COMPARED_AT_ONCE)
        self._compared = copies[-1] if len(copies) == _COMPARED_AT_ONCE else ""
        if copies:
            for memory_id in await retention.deleted_memories(node.remote, copies):
                await node.give_back(memory_id)
