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
# How long a process that stops erases deleted content.
_STOP_SECONDS: Final = 2.0
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
        # How often the index was created again because of damage.
        self.recreations = 0
        self._words = words
        self._file = file
        self._recreating = asyncio.Lock()
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
        """Stop. Safe at any time; the next process continues.

        Deleted content leaves the files before that, if it takes a short time: the next process may start much later.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._erase()
        except TimeoutError:
            return
        except (RunlaneError, sqlite3.DatabaseError) as error:
            log.warning("memory_words_failed", problem=str(error))

    async def _erase(self) -> None:
        """Remove the words and the content of deleted entries."""
        position = await self._words.position()
        while position.dropped < position.newest_dropped:
            position = await self._follow()
        await self._clear(position)
        if position.remains:
            await self._remove(position.dropped)

    async def catch_up(self) -> None:
        """Return once everything is indexed that was committed before this call."""
        try:
            position = await self._follow()
            target = position
            async with asyncio.timeout(_SEARCH_SECONDS):
                # A row that was deleted meanwhile is never reached.
                while not position.complete and (
                    position.row < target.newest or position.dropped < target.newest_dropped
                ):
                    position = await self._follow()
        except TimeoutError:
            raise Unavailable("The index of words is being created. Repeat the search later.") from None
        if position.remains or position.newest_dropped:
            self._wake.set()

    async def search_failed(self, error: sqlite3.DatabaseError, recreations: int) -> None:
        """Create the index again if it is damaged; otherwise raise the error.

        `recreations` is how often it had been created again when the search began. Concurrent searches fail together.
        """
        if not is_damage(error):
            raise error
        async with self._recreating:
            if recreations == self.recreations:
                log.error("memory_words_damaged", problem=str(error))
                try:
                    await self._words.recreate()
                except sqlite3.DatabaseError as problem:
                    raise Unavailable(f"The index of words is damaged: {problem}. Restart the process.") from problem
                self.recreations += 1
        self._wake.set()

    async def used_bytes(self) -> int:
        """Return the size of the index."""
        return await self._words.index_bytes()

    async def _run(self) -> None:
        while True:
            try:
                await self._wait()
                while not (position := await self._follow()).complete:
                    await self._clear(position)
                await self._clear(position)
                self._remains = position.remains
                if self._remains and time.monotonic() >= self._remove_at:
                    await self._remove(position.dropped)
                continue
            except RunlaneError as error:
                log.warning("memory_words_failed", problem=str(error))
            except sqlite3.DatabaseError as error:
                log.exception("memory_words_failed", problem=str(error))
            await asyncio.sleep(_FAILURE_PAUSE_SECONDS)
            self._wake.set()

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
        recreations = self.recreations
        try:
            return await self._words.follow()
        except sqlite3.DatabaseError as error:
            await self.search_failed(error, recreations)
        return await self._words.follow()

    async def _clear(self, position: WordsPosition) -> None:
        """Delete the content of deleted entries whose words have left the index."""
        if position.newest_dropped:
            await clear_dropped(self._file, position.dropped)

    async def _remove(self, dropped: int) -> None:
        """Rewrite the index without the words of deleted entries, in steps between which it is used."""
        began, first = time.monotonic(), True
        while await self._words.merge(dropped, first=first):
            first = False
        self._remains = False
        self._remove_at = time.monotonic() + max(self._removal_pause, (time.monotonic() - began) / _REMOVAL_SHARE)
