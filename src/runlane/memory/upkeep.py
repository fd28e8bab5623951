"""The upkeep of a memory file, beside its writer: merges of the index of words, and checkpoints.

SQLite would do both in a commit, and the callers of that commit would wait: for the merge of large parts of the index,
and for a checkpoint of the whole write-ahead log. Here the index is merged in small steps between two commits. A
connection of its own copies the log while the writer continues.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import structlog

from runlane.errors import RunlaneError
from runlane.store.memory.local_file import LocalFile

log = structlog.get_logger(__name__)

_PAUSE_SECONDS: Final = 0.05
_FAILURE_PAUSE_SECONDS: Final = 5.0
_CHECKPOINT_BYTES: Final = 4_000_000
# Checkpoints at shorter intervals would write the same pages again and again.
_CHECKPOINT_SECONDS: Final = 0.25
# Above this, the log is used from its beginning again.
_RESTART_PAGES: Final = 8_192


class FileUpkeep:
    """Maintains one file, with start() and stop(). What fails is repeated later.

    `writer` is the connection of the writer, `other` one that neither writes nor reads.
    """

    def __init__(self, writer: LocalFile, other: LocalFile, restart_pages: int = _RESTART_PAGES) -> None:
        self._writer = writer
        self._other = other
        self._restart_pages = restart_pages
        self._log = Path(f"{writer.path}-wal")
        self._checkpoint_at = float("-inf")
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Note that something was committed."""
        self._wake.set()

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="memory-upkeep")

    async def stop(self) -> None:
        """End. Safe at any time; closing the file makes the last checkpoint."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                while await self._step():
                    pass
                await asyncio.sleep(_PAUSE_SECONDS)
                await self._wake.wait()
                self._wake.clear()
            except (RunlaneError, OSError) as error:
                log.warning("memory_upkeep_failed", problem=str(error))
                await asyncio.sleep(_FAILURE_PAUSE_SECONDS)
            except Exception:  # a damaged index of words must not end checkpoints; it is logged
                log.exception("memory_upkeep_failed")
                await asyncio.sleep(_FAILURE_PAUSE_SECONDS)

    async def _step(self) -> bool:
        """Make a checkpoint if one is due, and merge a little. Return whether there may be more to merge."""
        if time.monotonic() >= self._checkpoint_at and _size(self._log) >= _CHECKPOINT_BYTES:
            await self.checkpoint()
            self._checkpoint_at = time.monotonic() + _CHECKPOINT_SECONDS
        # A step waits for its turn in the thread of the writer, so at most one is between two commits.
        return await self._writer.merge_words()

    async def checkpoint(self) -> None:
        """Copy the log to the file, and have a long log used from its beginning again.

        SQLite does that once all of the log is copied, which another connection does not achieve while the writer
        appends. So the writer copies the rest: what was appended during the second of two copies.
        """
        if await self._other.checkpoint() >= self._restart_pages:
            await self._other.checkpoint()
            await self._writer.checkpoint()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
