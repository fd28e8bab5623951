"""The runner of bulk jobs: takes a job, changes some of its runs, and leaves it for any process to continue.

Each run is changed by one transaction that also settles its item, so a process may be killed at any moment: what was
committed is settled, and everything else is still pending.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog

from runlane.bus import Bus
from runlane.domain.bulk import BulkActionName, BulkJob, BulkState
from runlane.domain.ids import new_id
from runlane.domain.maintenance import MaintenanceService
from runlane.domain.run import Status
from runlane.errors import RateLimited, RunlaneError, Unavailable
from runlane.failpoints import failpoint
from runlane.failures.actions import ACTIONS, ActionItem, BulkAction
from runlane.failures.options import parse_options
from runlane.maintenance.service import PeriodicService
from runlane.store.failures.bulk_items import note_new_run, pending_items, refuse_item, settle_item
from runlane.store.failures.bulk_jobs import (
    TakenJob,
    hold_job,
    leave_job,
    next_job_seconds,
    read_job,
    take_job,
)
from runlane.store.orchestration.children import wake_parents
from runlane.store.queue.run_changes import RunChange
from runlane.store.sql.database import Database, Session

log = structlog.get_logger(__name__)

# Bulk changes share the connection pool with other requests.
_AT_ONCE: Final = 4
_PAGE: Final = 100
# Well within the lease, so that a process loses a job only when it has stopped.
_SLICE_SECONDS: Final = 1.5
# How long a job waits when a limit of a tenant is reached.
_LIMITED_SECONDS: Final = 2.0
_IDLE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05


class _Ended(Exception):
    """The process lost the job: the job was stopped, or another process has taken it."""


def bulk_service(database: Database, bus: Bus) -> PeriodicService:
    """Return the maintenance service that works on bulk jobs."""
    processor = BulkRunner(database, bus)
    return PeriodicService(MaintenanceService.BULK, processor.wait_seconds, processor.run_once)


class BulkRunner:
    """One pass per call; `PeriodicService` is the loop."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus
        self._owner = new_id("own")
        self._wait_seconds = _IDLE_SECONDS

    def wait_seconds(self) -> float:
        """Return the time until the next job is due, as far as this process has seen."""
        return self._wait_seconds

    async def run_once(self) -> bool:
        """Work on a due job for a bounded time; return True when another pass should follow at once."""
        job = await take_job(self._database, self._owner)
        if job is not None:
            await self._work(job)
            return True
        seconds = await next_job_seconds(self._database)
        self._wait_seconds = _IDLE_SECONDS if seconds is None else min(max(seconds, _POLL_SECONDS), _IDLE_SECONDS)
        return False

    async def finish_within(self, job_id: str, seconds: float) -> BulkJob:
        """Work on one job until it has ended or the time has elapsed; return its progress."""
        deadline = time.monotonic() + seconds
        while True:
            taken = await take_job(self._database, self._owner, job_id)
            if taken is not None:
                await self._work(taken)
            job = await read_job(self._database, job_id)
            if job.state is not BulkState.RUNNING or time.monotonic() >= deadline:
                return job
            if taken is None:
                await asyncio.sleep(_POLL_SECONDS)

    async def _work(self, job: TakenJob) -> None:
        """Change some runs of the job, at its rate, and release the job."""
        begun = time.monotonic()
        left = None if job.rate is None else max(1, int(job.rate))
        done, pause_seconds = 0, 0.0
        try:
            while time.monotonic() - begun < _SLICE_SECONDS and left != 0:
                items = await pending_items(self._database, job.id, _PAGE if left is None else min(_PAGE, left))
                if not items:
                    break
                await self._change_all(job, items)
                done += len(items)
                left = None if left is None else left - len(items)
        except _Ended:
            return
        except RateLimited as limited:
            pause_seconds = _LIMITED_SECONDS
            log.info("bulk_job_waits", job_id=job.id, reason=str(limited))
        if job.rate is not None:
            pause_seconds = max(pause_seconds, done / job.rate - (time.monotonic() - begun))
        if await leave_job(self._database, job, pause_seconds):
            log.info("bulk_job_ended", job_id=job.id, action=job.action.value)

    async def _change_all(self, job: TakenJob, items: Sequence[tuple[int, str]]) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(no: int, run_id: str) -> None:
            async with gate:
                await self._change(job, no, run_id)

        results = await asyncio.gather(*(one(no, run_id) for no, run_id in items), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _change(self, job: TakenJob, no: int, run_id: str) -> None:
        action = ACTIONS[job.action]
        try:
            options = parse_options(action.options, dict(job.options))
            item = ActionItem(run_id, no, job.total, options, job.actor)
            change = await self._try(job, action, item)
        except (_Ended, RateLimited, Unavailable):
            raise
        except RunlaneError as error:
            await self._refuse(job, no, error.code, error.public_message)
            return
        except Exception:
            # One run that this process cannot change must not stop the others.
            log.exception("bulk_item_failed", job_id=job.id, run_id=run_id)
            await self._refuse(job, no, "internal_error", "Internal error. The log of the process has the cause.")
            return
        failpoint("bulk.item_committed")
        if change is not None:
            await self._publish(job.action, change)

    async def _try(self, job: TakenJob, action: BulkAction, item: ActionItem) -> RunChange | None:
        """Change a run and settle its item in one transaction."""
        prepared = await action.prepare(self._database, item)

        async def work(session: Session) -> RunChange | None:
            await action.lock(session, item, prepared)
            if not await hold_job(session, job):
                raise _Ended
            if not await settle_item(session, job.id, item.no):
                return None
            change = await action.change(session, item, prepared)
            if change is not None and change.new_run_id is not None:
                await note_new_run(session, job.id, item.no, change.new_run_id)
            failpoint("bulk.before_commit")
            return change

        return await self._database.transact(work)

    async def _refuse(self, job: TakenJob, no: int, code: str, reason: str) -> None:
        async def work(session: Session) -> None:
            if not await hold_job(session, job):
                raise _Ended
            if await settle_item(session, job.id, no):
                await refuse_item(session, job.id, no, code, reason)

        await self._database.transact(work)

    async def _publish(self, action: BulkActionName, change: RunChange) -> None:
        self._bus.ring(change.ready_lanes)
        self._bus.publish(change.notices)
        if change.due_seconds is not None:
            self._bus.report_timer(change.due_seconds)
        if action is BulkActionName.CANCEL:
            self._bus.signal_cancel(change.run_id)
            if change.status is Status.CANCELLED:
                # A waiting parent also polls; this wakes it earlier.
                with suppress(Unavailable):
                    self._bus.ring(await wake_parents(self._database, [change.run_id]))
