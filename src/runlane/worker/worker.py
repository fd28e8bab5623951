"""The worker: a claim loop, one execution per slot, and a clean shutdown.

When the lease is lost, every execution is stopped without writing to the database, and the worker registers again under
a new id. A drain claims nothing more, lets runs finish for the grace period (orchestrations begin further steps until
it is nearly over), hands the rest back without counting an attempt, and signs off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from runlane.bus import Bus
from runlane.domain.events import Delta
from runlane.domain.graph_registry import GraphSource
from runlane.domain.hints import Topic
from runlane.domain.run import AGENT, ORCHESTRATION
from runlane.domain.task import Task
from runlane.errors import LeaseLost, NotFound, Unavailable
from runlane.event_loop.daemon_executor import DaemonExecutor
from runlane.failpoints import failpoint
from runlane.observability.outage import outage
from runlane.settings import Settings
from runlane.store.queue.claim import Claimed
from runlane.store.queue.committer import Committer, Stopping
from runlane.store.queue.lane_names import check_lanes
from runlane.store.queue.record import Recorded, RecordEntry
from runlane.store.queue.workers import Interrupt, begin_draining
from runlane.store.sql.database import Database
from runlane.worker.claim_loop import ClaimLoop
from runlane.worker.execution import GraphRunExecutor, RunExecutor, StopReason
from runlane.worker.executions import Executions
from runlane.worker.health import WorkerHealth
from runlane.worker.heartbeat import Heartbeat, Registration
from runlane.worker.open_answers import OpenAnswers

log = structlog.get_logger(__name__)

# (tenant, names) -> values; names that do not exist are absent.
Values = Callable[[str, Collection[str]], Awaitable[Mapping[str, str]]]

_RETRY_SECONDS = 0.2
# Orchestrations begin no step in the last part of a grace period, so that most of them stop between two steps.
_HANDOVER_SHARE = 0.25
_HANDOVER_SECONDS = 5.0
# How long a drain waits for the last ends to be stored; what is not stored by then is left to the reaper.
_LAST_WRITES_SECONDS = 10.0


class Worker:
    """Executes the runs of some lanes. start() and stop() once each; stop is safe at any time."""

    def __init__(
        self,
        *,
        settings: Settings,
        database: Database,
        committer: Committer,
        bus: Bus,
        tasks: Mapping[str, Task],
        orchestrations: RunExecutor | None = None,
        graphs: GraphRunExecutor | None = None,
        secrets: Values | None = None,
        lanes: Collection[str] | None = None,
        concurrency: int | None = None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._committer = committer
        self._bus = bus
        self._orchestrations = orchestrations
        self._graphs = graphs
        self._secrets = secrets
        self._registration: Registration | None = None
        self._hurry = asyncio.Event()
        self._draining = False
        self._handover_at = float("inf")
        # Called in the liveness thread when the event loop is stuck for good. A process that only executes runs ends
        # itself here; a process that does more continues.
        self.on_stuck: Callable[[], None] = _continue
        self._warming: asyncio.Task[None] | None = None
        capacity = concurrency or settings.concurrency
        self._threads = DaemonExecutor(asyncio.get_running_loop(), "runlane-task", limit=capacity)
        self._executions = Executions(
            self,
            database,
            bus,
            tasks=dict(tasks),
            orchestrations=orchestrations,
            graphs=graphs,
            capacity=capacity,
            cancel_grace_seconds=settings.cancel_grace_seconds,
            worker_id=lambda: self.worker_id,
            abandon_registration=self._abandon_registration,
            on_ended=self._execution_ended,
        )
        self.health = WorkerHealth(capacity, count_active=lambda: self.active)
        named = {*tasks, *(() if graphs is None else graphs.targets)}
        self._claims = ClaimLoop(
            database,
            bus,
            self._executions,
            self.health,
            lanes=lanes,
            targets=frozenset(named if orchestrations is None else {*named, ORCHESTRATION, AGENT}),
            registration=lambda: self._registration,
            abandon_registration=self._abandon_registration,
        )
        self._unsubscribe = bus.on_cancel(self._executions.cancel)
        self.open_answers = OpenAnswers(bus)
        self._heartbeat = self._make_heartbeat(lanes, named, capacity)

    def _make_heartbeat(self, lanes: Collection[str] | None, targets: Collection[str], capacity: int) -> Heartbeat:
        return Heartbeat(
            self._settings,
            lanes=["*"] if lanes is None else sorted(set(lanes)),
            targets=sorted(targets),
            capacity=capacity,
            health=self.health,
            on_registered=self._begin,
            on_lost=self._lose,
            on_interrupts=self._interrupt_runs,
            on_stuck=self._stuck,
            on_survey=self._bus.report_survey,
            on_drain=self._hold_claims,
        )

    @property
    def finished(self) -> asyncio.Event:
        """Set when the worker has reached its bound; see bound()."""
        return self._claims.finished

    def bound(self, max_runs: int | None, *, ends_when_idle: bool) -> None:
        """Execute at most this many runs, or only those that are ready, then set `finished`. Call it before start()."""
        self._claims.bound(max_runs, ends_when_idle=ends_when_idle)

    @property
    def worker_id(self) -> str | None:
        """The id of the worker's current registration."""
        return None if self._registration is None else self._registration.worker_id

    @property
    def active(self) -> int:
        """The number of runs in execution."""
        return self._executions.active

    @property
    def has_stuck_code(self) -> bool:
        """Whether abandoned code of a run is still executing; only the end of the process ends it."""
        return self._executions.has_stuck_code

    @property
    def max_result_bytes(self) -> int:
        """The largest result or checkpoint that is stored."""
        return self._settings.max_result_bytes

    @property
    def handing_over(self) -> bool:
        """Whether runs of several steps should stop at the next boundary, because the worker is about to stop."""
        return self._draining and (self._hurry.is_set() or time.monotonic() >= self._handover_at)

    @property
    def log_runs(self) -> bool:
        """Whether the start and end of each run are logged: useful in development, too verbose in production."""
        return self._executions.log_runs

    @log_runs.setter
    def log_runs(self, value: bool) -> None:
        self._executions.log_runs = value

    async def start(self) -> None:
        """Register and start to claim."""
        if self._claims.lanes is not None:
            await check_lanes(self._database, self._claims.lanes)
        await self._heartbeat.start()
        self._claims.start()
        self._bus.hint(Topic.WORKERS)
        if self._orchestrations is not None:
            self._warming = asyncio.create_task(self._warm_up(self._orchestrations), name="runlane-warm-up")

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Drain, and sign off."""
        await self.drain(grace_seconds)
        self._claims.close()
        self._unsubscribe()
        self.open_answers.stop()
        await self._heartbeat.stop()
        self._bus.hint(Topic.WORKERS)
        self._threads.stop()
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait([self._warming])
        if self._orchestrations is not None:
            await self._orchestrations.close()
        if self._graphs is not None:
            await self._graphs.close()

    async def drain(self, grace_seconds: float | None = None) -> None:
        """Claim nothing more, let runs finish for the grace period, hand back the rest. Safe to call twice."""
        if self._claims.running:
            await self._drain(self._settings.grace_seconds if grace_seconds is None else grace_seconds)

    async def reload_graphs(self, sources: Collection[GraphSource], folders: Collection[Path]) -> Mapping[str, str]:
        """Load graphs again for later runs, and claim the runs of those that load. Return the errors of the others."""
        if self._graphs is None:
            return {}
        errors = await self._graphs.reload(sources, folders)
        self._claims.serve(self._graphs.targets)
        return errors

    def hurry(self) -> None:
        """End the grace period of a running drain."""
        self._hurry.set()

    async def record(self, entry: RecordEntry) -> Recorded:
        """Store an entry of an attempt, for as long as this registration may write."""
        registration = self._registration
        while registration is not None and registration is self._registration and registration.may_work():
            try:
                return await self._committer.record(entry, registration.deadline)
            except Stopping:
                break
            except Unavailable as error:
                outage.failed("a record of a run", str(error))
                await asyncio.sleep(_RETRY_SECONDS)
        if registration is not None and registration is self._registration:
            # No process ends this run now. A late renewal must not keep it under this registration.
            self._abandon_registration("an attempt could not be stored in time")
        raise LeaseLost(f"Run {entry.run_id} is no longer this worker's.")

    def send_delta(self, delta: Delta) -> None:
        """Publish a delta, which is not stored, to the followers of the run."""
        self._bus.send_delta(delta)

    async def secret(self, tenant: str, name: str) -> str:
        """Return the value of a secret. Raise NotFound if it does not exist."""
        found = None if self._secrets is None else await self._secrets(tenant, (name,))
        if found is None or name not in found:
            raise NotFound(f'No secret "{name}" is set in the tenant "{tenant}". Set it: runlane secrets set {name}')
        return found[name]

    def call_in_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a plain function in a thread of its own."""
        return self._threads.submit(function)

    async def _warm_up(self, executor: RunExecutor) -> None:
        try:
            await executor.warm_up()
        except Exception as error:  # noqa: BLE001 - optional; the step that needs it reports the error
            log.info("warm_up_failed", error=type(error).__name__)

    def _execution_ended(self, claimed: Claimed) -> None:
        self._claims.execution_ended(claimed)

    def _stuck(self) -> None:
        self.on_stuck()

    def _begin(self, registration: Registration) -> None:
        self._registration = registration
        self._claims.resume()

    def _hold_claims(self, wanted: bool) -> None:
        """Claim nothing while an operator drains this worker; its runs continue."""
        log.info("worker_drain_requested" if wanted else "worker_drain_cancelled", worker_id=self.worker_id)
        if wanted:
            self._claims.pause()
        elif self._registration is not None:
            self._claims.resume()
        self._bus.hint(Topic.WORKERS)

    def _lose(self, registration: Registration) -> None:
        """Stop all runs of a lost registration. Nothing is written: the fence would reject it."""
        if registration is not self._registration:
            return
        self._registration = None
        self._claims.pause()
        self._executions.interrupt_all(StopReason.LOST)
        self._heartbeat.check_now()

    def _abandon_registration(self, reason: str) -> None:
        """Give up this registration and register again under a new id; the reaper requeues its runs."""
        if self._registration is not None:
            log.error("registration_abandoned", worker_id=self._registration.worker_id, reason=reason)
            self._registration.lost = True
            self._lose(self._registration)

    def _interrupt_runs(self, registration: Registration, interrupts: Sequence[Interrupt]) -> None:
        if registration is self._registration:
            for run_id, attempt, stale_minutes in interrupts:
                if stale_minutes is None:
                    self._executions.cancel(run_id, attempt)
                else:
                    self._executions.stop_stale(run_id, attempt, stale_minutes)

    async def _drain(self, grace_seconds: float) -> None:
        started = time.monotonic()
        late = self._settings.drain_handover == "late"
        margin = min(_HANDOVER_SECONDS, grace_seconds * _HANDOVER_SHARE)
        self._handover_at = started + grace_seconds - margin if late else started
        self._draining = self.health.draining = True
        failpoint("drain.begun")
        await self._claims.stop()
        if self._registration is not None:
            log.info("worker_draining", worker_id=self.worker_id, active=self.active)
            try:
                await begin_draining(self._database, self._registration.worker_id, grace_seconds)
            except Unavailable as error:
                log.warning("drain_not_stored", error=str(error))
        if self.active:
            self._executions.all_done.clear()
            hurry = asyncio.create_task(self._hurry.wait())
            done = asyncio.create_task(self._executions.all_done.wait())
            await asyncio.wait([hurry, done], timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            done.cancel()
        self._executions.interrupt_all(StopReason.HAND_BACK)
        await self._executions.wait_stopped(_LAST_WRITES_SECONDS)


def _continue() -> None: ...
