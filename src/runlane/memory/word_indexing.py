"""The index of words of a memory file follows the file, concurrent with its writer.

Callers of changes do not wait for it. A search first waits until everything that was committed before it is indexed.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from typing import Final

import structlog

from runlane.errors import RunlaneError, Unavailable
from runlane.store.memory.local_file import LocalFile
from runlane.store.memory.words_file import WordsFile, WordsPosition, clear_dropped, is_damage

log = structlog.get_logger(__name__)

# Larger parts cost less per entry.
_PAUSE_SECONDS: Final = 0.25
_FAILURE_PAUSE_SECONDS: Final = 5.0
# How long a search waits. The creation of a large index takes longer.
_SEARCH_SECONDS: Final = 10.0
# The words of deleted entries are removed by rewriting the index, for which this share of a processor is used.
_REMOVAL_SHARE: Final = 0.02
_REMOVAL_PAUSE_SECONDS: Final = 30.0


class WordIndexing:
    """Keeps the index of one memory file up to date, with start() and stop().

    `file` is the connection of the writer. A failure is logged and retried.
    """

    def __init__(self, words: WordsFile, file: LocalFile, pause_seconds: float = _REMOVAL_PAUSE_SECONDS) -> None:
        self._words = words
        self._file = file
        self._removal_pause = pause_seconds
        self._remove_at = 0.0
        self._remains = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Note that something was committed."""
        self._wake.set()

    def start(self) -> None:
        """Start, with what earlier processes have not indexed."""
        self._wake.set()
        self._task = asyncio.create_task(self._run(), name="memory-words")

    async def stop(self) -> None:
        """Stop. Safe at any time; the next process continues."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def catch_up(self) -> None:
        """Return once everything is indexed that was committed before this call."""
        try:
            position = await self._follow()
            target = position
            async with asyncio.timeout(_SEARCH_SECONDS):
                while position.row < target.newest or position.dropped < target.newest_dropped:
                    position = await self._follow()
        except TimeoutError:
            raise Unavailable("The index of words is being created. Repeat the search later.") from None
        if position.remains:
            self._wake.set()

    async def search_failed(self, error: sqlite3.DatabaseError) -> None:
        """Create the index again if it is damaged; otherwise raise the error."""
        if not is_damage(error):
            raise error
        log.error("memory_words_damaged", problem=str(error))
        await self._words.recreate()
        self._wake.set()

    async def used_bytes(self) -> int:
        """Return the size of the index."""
        return await self._words.index_bytes()

    async def _run(self) -> None:
        while True:
            try:
                await self._wait()
                while not (position := await self._follow()).complete:
                    pass
                self._remains = position.remains
                if self._remains and time.monotonic() >= self._remove_at:
                    await self._remove(position.dropped)
            except RunlaneError as error:
                log.warning("memory_words_failed", problem=str(error))
                await asyncio.sleep(_FAILURE_PAUSE_SECONDS)
            except sqlite3.DatabaseError as error:
                log.exception("memory_words_failed", problem=str(error))
                await asyncio.sleep(_FAILURE_PAUSE_SECONDS)

    async def _wait(self) -> None:
        """Wait until something was committed, or the words of deleted entries are due to be removed."""
        pause = max(0.0, self._remove_at - time.monotonic()) if self._remains else None
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()
        await asyncio.sleep(_PAUSE_SECONDS)

    async def _follow(self) -> WordsPosition:
        try:
            position = await self._words.follow()
        except sqlite3.DatabaseError as error:
            await self.search_failed(error)
            position = await self._words.follow()
        if position.newest_dropped:
            await clear_dropped(self._file, position.dropped)
        return position

    async def _remove(self, dropped: int) -> None:
        """Rewrite the index without the words of deleted entries, in steps between which it is used."""
        began, first = time.monotonic(), True
        while await self._words.merge(dropped, first=first):
            first = False
        self._remains = False
        self._remove_at = time.monotonic() + max(self._removal_pause, (time.monotonic() - began) / _REMOVAL_SHARE)
