"""Checkpoints of a memory file, concurrent with its writer.

SQLite makes a checkpoint in the commit that fills the write-ahead log, and the callers of that commit wait for it.
Instead, a separate connection copies the log while the writer continues.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog

from runlane.errors import RunlaneError
from runlane.store.memory.local_file import LocalFile

log = structlog.get_logger(__name__)

_BYTES: Final = 4_000_000
# Checkpoints at shorter intervals would write the same pages again and again.
_PAUSE_SECONDS: Final = 0.25


class Checkpointer:
    """Makes the checkpoints of one file, with start() and stop(). A failed checkpoint is retried later."""

    def __init__(self, file: LocalFile) -> None:
        self._file = file
        self._log = Path(f"{file.path}-wal")
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Note that something was committed."""
        self._wake.set()

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="memory-checkpoints")

    async def stop(self) -> None:
        """End. Safe at any time; closing the file makes the last checkpoint."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                if _size(self._log) >= _BYTES:
                    await self._file.checkpoint()
            except (RunlaneError, OSError) as error:
                log.warning("memory_checkpoint_failed", problem=str(error))
            await asyncio.sleep(_PAUSE_SECONDS)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
