"""Accept the runs of concurrent requests in one transaction.

While batches are being committed, later requests are collected for the next one, so batches grow with the load and a
single request does not wait. A batch that fails is repeated request by request, so that an error reaches only its own
caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from runlane.errors import Unavailable
from runlane.store.sql.database import Database
from runlane.store.threads.starting import StartedRun, start_runs
from runlane.store.threads.thread_start import ThreadStart

# The maximum number of runs in one transaction: enough to share the cost of a commit, few enough to keep it short.
BATCH_SIZE: Final = 100
# Two batches, so that requests do not wait behind a batch that waits for the lock of a thread.
BATCHES: Final = 2


class _Request(NamedTuple):
    starts: Sequence[ThreadStart]
    answer: asyncio.Future[list[StartedRun]]


class StartCommitter:
    """Accepts runs of threads for all requests of a process. It needs no start, because it works while requests wait.

    `ring` wakes a worker of each of these lanes.
    """

    def __init__(self, database: Database, ring: Callable[[Collection[str]], None]) -> None:
        self._database = database
        self._ring = ring
        self._waiting: deque[_Request] = deque()
        self._working: set[asyncio.Task[None]] = set()
        # Counted here, since a task that has found nothing more to do stays in the set for another moment.
        self._active = 0

    async def start_runs(self, starts: Sequence[ThreadStart]) -> list[StartedRun]:
        """Accept these runs, all or none, in a transaction that other requests may share."""
        request = _Request(starts, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        if self._active < BATCHES:
            self._active += 1
            task = asyncio.create_task(self._work(), name="runlane-thread-starts")
            self._working.add(task)
            task.add_done_callback(self._working.discard)
        return await request.answer

    async def _work(self) -> None:
        try:
            # Requests that arrive in this iteration of the event loop share the batch.
            await asyncio.sleep(0)
            while batch := self._next_batch():
                await self._accept(batch)
        finally:
            self._active -= 1

    def _next_batch(self) -> list[_Request]:
        """Return the next requests, each thread at most once: a run sees the earlier runs of its thread."""
        batch: list[_Request] = []
        size = 0
        threads: set[str] = set()
        while self._waiting:
            request = self._waiting[0]
            if not request.answer.done():
                keys = {start.key for start in request.starts}
                size += len(request.starts)
                if batch and (size > BATCH_SIZE or not threads.isdisjoint(keys)):
                    break
                threads |= keys
                batch.append(request)
            self._waiting.popleft()
        return batch

    async def _accept(self, batch: Sequence[_Request]) -> None:
        starts = [start for request in batch for start in request.starts]
        try:
            accepted = await start_runs(self._database, starts)
        except Exception as error:  # noqa: BLE001 - raised in the caller whose request causes it
            if len(batch) == 1 or isinstance(error, Unavailable):
                # The database is not available for any of them, or it is not known whether they are stored.
                for request in batch:
                    _refuse(request, error)
                return
            for request in batch:
                await self._accept([request])
        else:
            started = iter(accepted)
            for request in batch:
                own = [next(started) for _ in request.starts]
                if not request.answer.done():
                    request.answer.set_result(own)
            # A worker takes all runs that it can execute, so one bell for each graph is enough.
            ready = {(run.accepted.lane, start.graph_id) for start, run in zip(starts, accepted, strict=True)}
            for lane, _ in sorted(ready):
                self._ring([lane])


def _refuse(request: _Request, error: Exception) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
