"""The executions of a worker: started here, interrupted here, and watched until they stop.

Slots are counted from live executions, so none can leak. Code that does not stop when it is interrupted is abandoned:
its run ends without it, and its slot stays taken until it stops.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from runlane.bus import Bus
from runlane.domain.run import GRAPH, Status
from runlane.domain.slots import WorkerLoad
from runlane.domain.task import Task
from runlane.domain.text import dump_json
from runlane.errors import LeaseLost
from runlane.observability import metrics, tracing
from runlane.observability.log_context import set_log_context
from runlane.store.queue.claim import Claimed
from runlane.store.queue.record import AttemptOutcome, Finish
from runlane.store.sql.database import Database
from runlane.worker.execution import Execution, RunExecutor, StopReason
from runlane.worker.notify_parent import notify_parent
from runlane.worker.run_host import RunHost

log = structlog.get_logger(__name__)

_HAND_BACK_GRACE_SECONDS = 1.0


class Executions:
    """The runs that a worker executes. `on_ended` is called when one has ended or was abandoned."""

    def __init__(
        self,
        host: RunHost,
        database: Database,
        bus: Bus,
        *,
        tasks: Mapping[str, Task],
        orchestrations: RunExecutor | None,
        graphs: RunExecutor | None = None,
        capacity: int,
        cancel_grace_seconds: float,
        worker_id: Callable[[], str | None],
        abandon_registration: Callable[[str], None],
        on_ended: Callable[[Claimed], None],
    ) -> None:
        self._host = host
        self._database = database
        self._bus = bus
        self._tasks = tasks
        self._orchestrations = orchestrations
        self._graphs = graphs
        self._capacity = capacity
        self._cancel_grace_seconds = cancel_grace_seconds
        self._worker_id = worker_id
        self._abandon_registration = abandon_registration
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._running: dict[str, Execution] = {}
        self._stuck: set[asyncio.Future[Any]] = set()
        self._watching: set[asyncio.Task[None]] = set()
        self.slot_free = asyncio.Event()
        self.all_done = asyncio.Event()
        self.log_runs = False

    @property
    def active(self) -> int:
        """The number of runs in execution."""
        return len(self._running)

    @property
    def has_stuck_code(self) -> bool:
        """Whether abandoned code is still executing; only the end of the process ends it."""
        return bool(self._stuck)

    def free_slots(self) -> int:
        """Return how many runs may be claimed."""
        return self._capacity - len(self._running) - len(self._stuck)

    def load(self) -> WorkerLoad:
        """Return the number of running executions, and the bound that quarantined ones among them set."""
        bounds = [run.claimed.max_neighbors for run in self._running.values() if run.claimed.max_neighbors is not None]
        return WorkerLoad(len(self._running) + len(self._stuck), min(bounds) + 1 if bounds else None)

    def start(self, claimed: Claimed) -> None:
        """Execute a claimed run."""
        job = self._job(claimed.target)
        execution = Execution(claimed, job, self._host, self._loop, on_timeout=self._time_out)
        self._running[claimed.run_id] = execution
        if self.log_runs:
            log.info("run_started", task=claimed.target, run_id=claimed.run_id, attempt=claimed.tries)
        if claimed.attempt == 1:
            metrics.RUN_WAIT_SECONDS.observe(_waited_seconds(claimed), claimed.lane)
        execution.task = asyncio.create_task(self._execute(execution))

    def cancel(self, run_id: str, attempt: int | None = None) -> None:
        """Interrupt the execution of a cancelled run, if this worker executes it (in this attempt, if given)."""
        execution = self._running.get(run_id)
        if execution is not None and attempt in (None, execution.claimed.attempt):
            self._interrupt(execution, StopReason.CANCEL)

    def stop_stale(self, run_id: str, attempt: int, minutes: int) -> None:
        """Interrupt an attempt that has stored nothing for this many minutes; the run is tried again."""
        execution = self._running.get(run_id)
        if execution is not None and attempt == execution.claimed.attempt:
            execution.stale_minutes = minutes
            self._interrupt(execution, StopReason.STALE)

    def interrupt_all(self, reason: StopReason) -> None:
        """Interrupt every execution."""
        for execution in list(self._running.values()):
            self._interrupt(execution, reason)

    async def wait_stopped(self, timeout_seconds: float) -> None:
        """Wait, after interrupt_all(), until the ends of all executions are stored."""
        # The watchers come first: they abandon code that does not stop, so that it is not awaited.
        if self._watching:
            await asyncio.wait(self._watching, timeout=timeout_seconds)
        ending = [execution.task for execution in self._running.values() if execution.task is not None]
        if ending:
            await asyncio.wait(ending, timeout=timeout_seconds)

    def _job(self, target: str) -> Task | RunExecutor:
        task = self._tasks.get(target)
        if task is not None:
            return task
        if target.startswith(GRAPH) and self._graphs is not None:
            return self._graphs
        if self._orchestrations is None:
            raise LookupError(f"claimed {target}, which this worker cannot execute")
        return self._orchestrations

    async def _execute(self, execution: Execution) -> None:
        claimed, started = execution.claimed, time.monotonic()
        set_log_context(claimed.run_id, claimed.attempt, claimed.tenant, self._worker_id())
        try:
            await (execution.run() if tracing.provider() is None else self._run_traced(execution))
            if execution.has_ended:
                await notify_parent(self._database, self._bus, claimed)
        except (LeaseLost, asyncio.CancelledError):
            pass  # interrupted by this worker, which stores the end itself or leaves the run to the reaper
        except Exception as error:
            # The database rejected the end of the attempt. The run must not stay in status running.
            log.exception("run_not_stored", run_id=claimed.run_id)
            await self._end_as_failed(execution, error)
        finally:
            metrics.RUN_SECONDS.observe(time.monotonic() - started)
            self._ended(execution)
            if self.log_runs:
                log.info(execution.log_event, task=claimed.target, run_id=claimed.run_id, **execution.log_fields())

    async def _run_traced(self, execution: Execution) -> None:
        claimed = execution.claimed
        attributes = {
            "runlane.run_id": claimed.run_id,
            "runlane.attempt": claimed.attempt,
            "runlane.lane": claimed.lane,
            "runlane.tenant": claimed.tenant,
            "runlane.worker": self._worker_id(),
        }
        with tracing.span(f"run {claimed.target}", attributes, claimed.trace) as span:
            await execution.run()
            tracing.set_attributes(span, execution.log_fields())

    async def _end_as_failed(self, execution: Execution, error: Exception) -> None:
        message = {
            "type": "NotStored",
            "message": f"The end of the attempt could not be stored: {type(error).__name__}.",
        }
        try:
            await execution.end(Finish(AttemptOutcome.FAILED, Status.FAILED, error=dump_json(message)))
        except Exception:
            log.exception("run_left_to_reaper", run_id=execution.claimed.run_id)
            self._abandon_registration("the end of an attempt could not be stored")

    def _ended(self, execution: Execution) -> None:
        if self._running.get(execution.claimed.run_id) is execution:
            del self._running[execution.claimed.run_id]
        self.slot_free.set()
        self._on_ended(execution.claimed)
        if not self._running:
            self.all_done.set()

    def _time_out(self, execution: Execution) -> None:
        self._interrupt(execution, StopReason.TIMEOUT)

    def _interrupt(self, execution: Execution, reason: StopReason) -> None:
        if not execution.interrupt(reason):
            return
        watcher = asyncio.create_task(self._watch(execution, reason))
        self._watching.add(watcher)
        watcher.add_done_callback(self._watching.discard)

    async def _watch(self, execution: Execution, reason: StopReason) -> None:
        """Wait until interrupted code stops; after its grace period, end the run without it."""
        task = execution.task
        if task is None:
            return
        grace = 0.0 if reason is StopReason.LOST else self._cancel_grace_seconds
        if reason is StopReason.HAND_BACK:
            grace = min(grace, _HAND_BACK_GRACE_SECONDS)
        deadline = self._loop.time() + grace
        while not task.done() and self._loop.time() < deadline:
            await asyncio.wait([task], timeout=min(1.0, max(0.01, deadline - self._loop.time())))
            if not task.done():
                execution.nudge()
        if task.done() or execution.abandoned or (execution.ending and reason is not StopReason.LOST):
            return
        finish = execution.abandon()
        self._stuck.add(task)
        task.add_done_callback(self._free_stuck_slot)
        self._ended(execution)
        if finish is not None:
            try:
                await execution.end(finish)
            except Exception as error:
                log.exception("run_not_stored", run_id=execution.claimed.run_id)
                await self._end_as_failed(execution, error)

    def _free_stuck_slot(self, task: asyncio.Future[Any]) -> None:
        self._stuck.discard(task)
        self.slot_free.set()


def _waited_seconds(claimed: Claimed) -> float:
    return (claimed.claimed_at_us - claimed.accepted_at_us) / 1_000_000
