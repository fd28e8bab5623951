"""The writer: take all jobs that wait in the shards and commit them together.

One transaction at a time, in the one thread of a file or on the database. While it commits, the next batch is
collected. A job is acknowledged after its commit. If the commit fails, every job of the batch fails; a job that raises
an error fails alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from runlane.errors import RunlaneError, StorageFull, Unavailable
from runlane.failpoints import failpoint
from runlane.memory.shards import MemoryJob, Shards
from runlane.store.memory.requests import MemoryAnswer, MemoryRequest
from runlane.store.memory.writing import WriteRules, write_requests
from runlane.store.sql.database import CommitInDoubt, Database, Session

log = structlog.get_logger(__name__)

BATCH_JOBS: Final = 1024
_TRIES_IN_DOUBT: Final = 5

Answer = MemoryAnswer | RunlaneError


class MemoryWriter:
    """Commits the jobs of the shards of one process, with start() and stop().

    `admit` is called for each change just before it is written, and raises if the process may not write it any more.
    Each of `committed` is called with the memories of each committed batch.
    """

    def __init__(
        self,
        database: Database,
        shards: Shards,
        rules: WriteRules,
        admit: Callable[[MemoryRequest], None] | None = None,
        committed: Sequence[Callable[[set[str]], None]] = (),
    ) -> None:
        self._database = database
        self._shards = shards
        self._rules = rules
        self._admit = admit
        self._committed = list(committed)
        self._task: asyncio.Task[None] | None = None

    def on_committed(self, call: Callable[[set[str]], None]) -> None:
        """Also call this with the memories of each committed batch."""
        self._committed.append(call)

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run(), name="memory-writer")

    async def stop(self) -> None:
        """Write the waiting jobs, then end. New jobs are rejected."""
        self._shards.close()
        if self._task is not None:
            # The writer ends on its own once no job waits; a cancelled caller must not interrupt it.
            await asyncio.shield(self._task)
            self._task = None

    async def _run(self) -> None:
        while True:
            await self._shards.wait()
            jobs = self._shards.take(BATCH_JOBS)
            if not jobs:
                return
            try:
                await self._write(jobs)
            except BaseException as error:
                _fail(jobs, Unavailable("The memory of this process was stopped."))
                if not isinstance(error, Exception):
                    raise
                log.exception("memory_writer_failed")
            finally:
                self._shards.finish(jobs)

    async def _write(self, jobs: Sequence[MemoryJob]) -> None:
        wanted = [job for job in jobs if job.request is not None and self._admits(job, job.request)]
        requests = [job.request for job in wanted if job.request is not None]
        if requests:
            answers = await self._commit(requests)
            failpoint("memory.committed")
            for call in self._committed:
                call({request.memory_id for request in requests})
            for job, answer in zip(wanted, answers, strict=True):
                _settle(job, answer)
        for job in jobs:
            if job.request is None:
                _settle(job, None)

    def _admits(self, job: MemoryJob, request: MemoryRequest) -> bool:
        if self._admit is None:
            return True
        try:
            self._admit(request)
        except RunlaneError as error:
            _settle(job, error)
            return False
        return True

    async def _commit(self, requests: Sequence[MemoryRequest]) -> Sequence[Answer]:
        try:
            return await self._transact(requests)
        except (Unavailable, StorageFull) as error:
            return [error] * len(requests)
        except Exception as error:
            if len(requests) == 1:
                log.exception("memory_job_failed", memory=requests[0].memory_id)
                return [_unexpected(error)]
        answers: list[Answer] = []
        for request in requests:
            answers += await self._commit([request])
        return answers

    async def _transact(self, requests: Sequence[MemoryRequest]) -> Sequence[Answer]:
        async def work(session: Session) -> Sequence[Answer]:
            answers = await write_requests(session, requests, self._rules)
            failpoint("memory.before_commit")
            return answers

        for _ in range(_TRIES_IN_DOUBT):
            try:
                return await self._database.transact(work)
            except CommitInDoubt:
                # The operation ids in the log decide: a request that was committed is not written again.
                requests = [replace(request, keyed=True) for request in requests]
                await asyncio.sleep(0.05)
        raise Unavailable("The connection to the database broke during a commit. Retry with the same idempotency key.")


def _unexpected(error: Exception) -> RunlaneError:
    return error if isinstance(error, RunlaneError) else RunlaneError(f"The change failed: {type(error).__name__}.")


def _settle(job: MemoryJob, answer: Any) -> None:
    if job.done.done():
        return  # the caller was cancelled
    if isinstance(answer, Exception):
        job.done.set_exception(answer)
        # The caller may have been cancelled; the event loop must not report the error as never retrieved.
        with contextlib.suppress(Exception):
            job.done.exception()
    else:
        job.done.set_result(answer)


def _fail(jobs: Sequence[MemoryJob], error: RunlaneError) -> None:
    for job in jobs:
        _settle(job, error)
