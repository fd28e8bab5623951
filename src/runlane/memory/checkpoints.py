"""Checkpoints of a memory file, concurrent with its writer.

SQLite makes a checkpoint in the commit that fills the write-ahead log, and the callers of that commit wait for it.
Instead, a separate connection copies the log while the writer continues.

A deleted text is overwritten by a checkpoint, and the log has it until the log is overwritten or truncated. In an idle
process, neither would happen, so the logs of the file and of its index of words are truncated at intervals.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Final

import structlog

from runlane.errors import RunlaneError
from runlane.store.memory.local_file import LocalFile
from runlane.store.memory.words_file import WORDS_SCHEMA, WordsFile, words_path

log = structlog.get_logger(__name__)

_BYTES: Final = 4_000_000
# Checkpoints at shorter intervals would write the same pages again and again.
_PAUSE_SECONDS: Final = 0.25
# A truncated log grows again, which costs more than to overwrite it.
_TRUNCATE_SECONDS: Final = 30.0


class Checkpointer:
    """Makes the checkpoints of one file, with start() and stop(). A failed checkpoint is retried later."""

    def __init__(self, file: LocalFile, words: WordsFile) -> None:
        self._file = file
        self._words = words
        self._log = _log_of(file.path)
        self._words_log = _log_of(words_path(file.path))
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._truncate_at = 0.0

    def wake(self) -> None:
        """Note that something was committed."""
        self._wake.set()

    def start(self) -> None:
        """Start the loop."""
        self._truncate_at = time.monotonic() + _TRUNCATE_SECONDS
        self._task = asyncio.create_task(self._run(), name="memory-checkpoints")

    async def stop(self) -> None:
        """Stop. Safe at any time; closing the file makes the last checkpoint."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._truncate_at - time.monotonic())):
                    await self._wake.wait()
            self._wake.clear()
            try:
                if time.monotonic() >= self._truncate_at:
                    await self._truncate()
                elif _size(self._log) >= _BYTES:
                    await self._file.checkpoint()
            except (RunlaneError, OSError, sqlite3.DatabaseError) as error:
                log.warning("memory_checkpoint_failed", problem=str(error))
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _truncate(self) -> None:
        """Truncate the logs. A log that a reader or the writer needs now is truncated at the next interval."""
        self._truncate_at = time.monotonic() + _TRUNCATE_SECONDS
        if _size(self._log):
            await self._file.truncate_log()
        if _size(self._words_log):
            await self._words.truncate_log(WORDS_SCHEMA)


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
