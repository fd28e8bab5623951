"""Shards: bounded queues in front of the writer, which preserve the order of each memory.

A memory belongs to one of 256 shards by the hash of its id. A shard holds at most 128 jobs; a job for a full shard
waits for a short time and is then rejected. The writer takes jobs from all shards in turn, so a busy shard delays only
its own jobs.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Final

from runlane.domain.memory import SHARDS, shard_of
from runlane.errors import MemoryBusy, Unavailable
from runlane.store.memory.requests import MemoryRequest

SHARD_JOBS: Final = 128
SUBMIT_WAIT_SECONDS: Final = 0.1
_RETRY_AFTER_SECONDS: Final = 1.0


class _Shard:
    """One queue. `occupied` counts the jobs that wait or are being written, and reserved places."""

    __slots__ = ("jobs", "occupied", "waiters")

    def __init__(self) -> None:
        self.jobs: deque[MemoryJob] = deque()
        self.occupied = 0
        self.waiters: deque[asyncio.Future[None]] = deque()


@dataclass(slots=True, eq=False)
class MemoryJob:
    """A change or, without a request, a barrier, which is done when all earlier changes are."""

    memory_id: str
    request: MemoryRequest | None
    shard: _Shard
    done: asyncio.Future[Any]


class Shards:
    """The queues of one process. Used from one event loop."""

    def __init__(self, wait_seconds: float = SUBMIT_WAIT_SECONDS, jobs_per_shard: int = SHARD_JOBS) -> None:
        self._wait_seconds = wait_seconds
        self._limit = jobs_per_shard
        self._shards = [_Shard() for _ in range(SHARDS)]
        self._ready: deque[_Shard] = deque()
        self._unfinished: Counter[str] = Counter()
        self._count = 0
        self._filled = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """Return how many jobs wait or are being written."""
        return self._count

    def is_idle(self, memory_id: str) -> bool:
        """Return whether no change of the memory waits or is being written."""
        return memory_id not in self._unfinished

    async def submit(self, memory_id: str, request: MemoryRequest | None) -> Any:
        """Queue a job and return its result once the writer has committed it.

        Raise MemoryBusy, with nothing queued, if the shard stays full.
        """
        shard = self._shards[shard_of(memory_id)]
        # A job behind others that wait for space must not overtake them.
        if shard.occupied >= self._limit or shard.waiters:
            await self._wait_for_space(shard, memory_id)
        else:
            shard.occupied += 1
        if self._closed:
            self._release(shard)
            raise Unavailable("The memory of this process is closed.")
        job = MemoryJob(memory_id, request, shard, asyncio.get_running_loop().create_future())
        self._unfinished[memory_id] += 1
        self._count += 1
        if not shard.jobs:
            self._ready.append(shard)
        shard.jobs.append(job)
        self._filled.set()
        # A caller that is cancelled leaves its job in the queue: its place in the order is taken.
        return await job.done

    async def _wait_for_space(self, shard: _Shard, memory_id: str) -> None:
        """Wait until a place is reserved for the caller."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        shard.waiters.append(waiter)
        try:
            await asyncio.wait_for(waiter, self._wait_seconds)
        except TimeoutError:
            if waiter.done() and not waiter.cancelled():
                return  # reserved at the last moment
            raise MemoryBusy(
                f'As many changes wait for the shard of the memory "{memory_id}" as it may hold. Retry later.',
                _RETRY_AFTER_SECONDS,
            ) from None
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release(shard)
            raise
        finally:
            if waiter in shard.waiters:
                shard.waiters.remove(waiter)

    async def wait(self) -> None:
        """Return once there is a job to take, or the shards are closed."""
        if not self._ready and not self._closed:
            self._filled.clear()
            await self._filled.wait()

    def take(self, limit: int) -> list[MemoryJob]:
        """Return waiting jobs: of each memory in their order, and of every shard in turn."""
        taken: list[MemoryJob] = []
        share = max(1, limit // (len(self._ready) or 1))
        for _ in range(len(self._ready)):
            shard = self._ready.popleft()
            taken += [shard.jobs.popleft() for _ in range(min(share, len(shard.jobs), limit - len(taken)))]
            if shard.jobs:
                self._ready.append(shard)
            if len(taken) >= limit:
                break
        return taken

    def finish(self, jobs: list[MemoryJob]) -> None:
        """Free the places of jobs that are done."""
        self._count -= len(jobs)
        for job in jobs:
            left = self._unfinished[job.memory_id] - 1
            if left:
                self._unfinished[job.memory_id] = left
            else:
                del self._unfinished[job.memory_id]
            self._release(job.shard)

    def _release(self, shard: _Shard) -> None:
        """Assign a free place to the job that has waited longest, if any."""
        while shard.waiters:
            waiter = shard.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        shard.occupied -= 1

    def close(self) -> None:
        """Reject new jobs. The writer still takes the waiting ones."""
        self._closed = True
        self._filled.set()
