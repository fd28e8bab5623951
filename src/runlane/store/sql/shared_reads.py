"""Reads that concurrent callers share.

Every caller gets the result of a read that begins after its call, so it is as new as that of a statement of its own.
While a read is in progress, later calls are collected for the next one, so reads grow with the load and a single call
does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Final, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")

# The keys of one read.
MOST_KEYS: Final = 500
# A second read, so that calls do not always wait for one that has just begun.
READS: Final = 2


class SharedReads(Generic[K, T]):
    """Reads values by their keys. `read` returns a value for each key, or the exception to raise for it."""

    def __init__(self, read: Callable[[Sequence[K]], Awaitable[Mapping[K, T | BaseException]]]) -> None:
        self._read = read
        self._waiting: dict[K, asyncio.Future[T]] = {}
        self._working: set[asyncio.Task[None]] = set()
        self._active = 0

    async def get(self, key: K) -> T:
        """Return the value of a key, or raise its exception."""
        answer = self._waiting.get(key)
        if answer is None:
            answer = self._waiting[key] = asyncio.get_running_loop().create_future()
            if self._active < READS:
                self._active += 1
                task = asyncio.create_task(self._work(), name="runlane-shared-reads")
                self._working.add(task)
                task.add_done_callback(self._working.discard)
        # A caller that leaves must not cancel the read of the others.
        return await asyncio.shield(answer)

    async def _work(self) -> None:
        try:
            # Calls of this iteration of the event loop share the read.
            await asyncio.sleep(0)
            while self._waiting:
                keys = list(islice(self._waiting, MOST_KEYS))
                await self._answer({key: self._waiting.pop(key) for key in keys})
        finally:
            self._active -= 1

    async def _answer(self, batch: Mapping[K, asyncio.Future[T]]) -> None:
        try:
            found = await self._read(list(batch))
        except Exception as error:  # noqa: BLE001 - raised in the callers
            found = dict.fromkeys(batch, error)
        for key, answer in batch.items():
            value = found[key]
            if isinstance(value, BaseException):
                answer.set_exception(value)
                # It is retrieved here in case every caller has left.
                answer.exception()
            else:
                answer.set_result(value)


def one_by_one(read: Callable[[K], Awaitable[T]]) -> Callable[[Sequence[K]], Awaitable[Mapping[K, T | BaseException]]]:
    """Return a read of many keys that calls `read` for each at the same time. Equal calls share one."""

    async def read_all(keys: Sequence[K]) -> Mapping[K, T | BaseException]:
        found = await asyncio.gather(*(read(key) for key in keys), return_exceptions=True)
        return dict(zip(keys, found, strict=True))

    return read_all
