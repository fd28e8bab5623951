"""The worker: one claim loop, as many executions as it has slots, and a clean end.

Slots are counted from live executions, so none can leak. When the lease is lost every execution is stopped without a
word to the database, and the worker goes on under a new name. On a drain it claims nothing more, lets runs finish for
a while (orchestrations begin further steps until that time is nearly over), hands the rest back without counting an
attempt, and signs off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import structlog

from runlane.bus import Bus
from runlane.daemon_executor import DaemonExecutor
from runlane.domain.events import Delta
from runlane.domain.run import AGENT, ORCHESTRATION, Status
from runlane.domain.slots import WorkerLoad
from runlane.domain.task import Task
from runlane.domain.text import dump_json
from runlane.errors import LeaseLost, NotFound, Unavailable
from runlane.failpoints import failpoint
from runlane.observability import metrics, tracing
from runlane.observability.log_context import set_log_context
from runlane.observability.outage import outage
from runlane.settings import Settings
from runlane.store.queue.claim import Claimed, ClaimOutcome, LaneMemory, claim
from runlane.store.queue.committer import Committer, Stopping
from runlane.store.queue.lanes import check_lanes
from runlane.store.queue.record import AttemptOutcome, Finish, Recorded, RecordEntry
from runlane.store.queue.workers import begin_draining, owned_runs
from runlane.store.sql.database import CommitInDoubt, Database, Session
from runlane.worker.execution import Execution, RunExecutor, StopReason
from runlane.worker.health import WorkerHealth
from runlane.worker.heartbeat import Heartbeat, Registration
from runlane.worker.notify_parent import notify_parent
from runlane.worker.open_answers import OpenAnswers

log = structlog.get_logger(__name__)

# (tenant, names) -> values; names that do not exist are absent.
Values = Callable[[str, Collection[str]], Awaitable[Mapping[str, str]]]

_PAUSE_SECONDS = 0.2
# Orchestrations begin no step in the last part of a grace period, so that most of them stop between two steps.
_HANDOVER_SHARE = 0.25
_HANDOVER_SECONDS = 5.0
# How long a drain waits for the last ends to be stored; what is not stored by then is the reaper's.
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
        secrets: Values | None = None,
        lanes: Collection[str] | None = None,
        concurrency: int | None = None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._committer = committer
        self._bus = bus
        self._tasks = dict(tasks)
        self._orchestrations = orchestrations
        self._secrets = secrets
        self._targets = frozenset(tasks) if orchestrations is None else frozenset({*tasks, ORCHESTRATION, AGENT})
        self._capacity = concurrency or settings.concurrency
        self._memory = LaneMemory(only=None if lanes is None else frozenset(lanes))
        self._listener = bus.listen(self._memory.only)
        self._unhear = bus.on_cancel(self._cancel)
        self.open_answers = OpenAnswers(bus)
        self._loop = asyncio.get_running_loop()
        self._threads = DaemonExecutor(self._loop, "runlane-task", limit=self._capacity)
        self._running: dict[str, Execution] = {}
        self._stuck: set[asyncio.Future[Any]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._incarnation: Registration | None = None
        self._may_claim = asyncio.Event()
        self._slot_free = asyncio.Event()
        self._all_done = asyncio.Event()
        self._hurry = asyncio.Event()
        self._draining = False
        self._handover_at = float("inf")
        # Tell in the log of each run's start and end: for one person watching, too much for production.
        self.narrate = False
        # Called in the liveness thread when the event loop is stuck for good. A process that only executes runs ends
        # itself here; one that does more is left alone.
        self.on_stuck: Callable[[], None] = _leave_alone
        self._claimer: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        self.health = WorkerHealth(self._capacity, count_active=lambda: len(self._running))
        self._liveness = Heartbeat(
            settings,
            lanes=sorted(self._memory.only) if self._memory.only is not None else ["*"],
            targets=sorted(self._tasks),
            capacity=self._capacity,
            health=self.health,
            on_begin=self._begin,
            on_lost=self._lose,
            on_cancels=self._hear_cancels,
            on_stuck=self._stuck_for_good,
        )

    @property
    def worker_id(self) -> str | None:
        """The name of the worker's present life."""
        return None if self._incarnation is None else self._incarnation.worker_id

    @property
    def active(self) -> int:
        """Runs in execution."""
        return len(self._running)

    @property
    def max_result_bytes(self) -> int:
        """The largest result or checkpoint that is stored."""
        return self._settings.max_result_bytes

    @property
    def handing_over(self) -> bool:
        """Whether runs of several steps should stop at the next boundary, because the worker is about to end."""
        return self._draining and (self._hurry.is_set() or time.monotonic() >= self._handover_at)

    async def start(self) -> None:
        """Register and begin to claim."""
        if self._memory.only is not None:
            await check_lanes(self._database, self._memory.only)
        await self._liveness.start()
        self._claimer = asyncio.create_task(self._claim_loop(), name="runlane-claims")
        if self._orchestrations is not None:
            self._warming = asyncio.create_task(self._warm_up(self._orchestrations), name="runlane-warm-up")

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Drain, and sign off."""
        await self.drain(grace_seconds)
        self._listener.close()
        self._unhear()
        self.open_answers.stop()
        await self._liveness.stop()
        self._threads.stop()
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait([self._warming])
        if self._orchestrations is not None:
            await self._orchestrations.close()

    async def drain(self, grace_seconds: float | None = None) -> None:
        """Claim nothing more, let runs finish for the grace period, hand back the rest. Safe to call twice."""
        if self._claimer is not None:
            await self._drain(self._settings.grace_seconds if grace_seconds is None else grace_seconds)

    def hurry(self) -> None:
        """End the grace period of a drain that is under way."""
        self._hurry.set()

    @property
    def has_stuck_code(self) -> bool:
        """True when code of a run that was given up is still executing; only the end of the process ends it."""
        return bool(self._stuck)

    async def record(self, entry: RecordEntry) -> Recorded:
        """Store what an attempt says, for as long as this life of the worker may write."""
        incarnation = self._incarnation
        while incarnation is not None and incarnation is self._incarnation and incarnation.may_work():
            try:
                return await self._committer.record(entry, incarnation.deadline)
            except Stopping:
                break
            except Unavailable as error:
                outage.failed("a record of a run", str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
        if incarnation is not None and incarnation is self._incarnation:
            # Nobody ends this run now. A renewal that comes late must not keep it under our name.
            self._give_up_life("an attempt could not be stored in time")
        raise LeaseLost(f"Run {entry.run_id} is no longer this worker's.")

    def send_delta(self, delta: Delta) -> None:
        """Tell whoever follows the run something that is not stored."""
        self._bus.send_delta(delta)

    async def secret(self, tenant: str, name: str) -> str:
        """The value of a secret. NotFound if there is none of this name."""
        found = None if self._secrets is None else await self._secrets(tenant, (name,))
        if found is None or name not in found:
            raise NotFound(f'No secret "{name}" is set in the tenant "{tenant}". Set it: runlane secrets set {name}')
        return found[name]

    def call_in_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a plain function in a thread of its own."""
        return self._threads.submit(function)

    async def _warm_up(self, program: RunExecutor) -> None:
        try:
            await program.warm_up()
        except Exception as error:  # noqa: BLE001 - only a saving of time; the step that needs it reports the cause
            log.info("warm_up_failed", error=type(error).__name__)

    # --- claiming

    def _free_slots(self) -> int:
        return self._capacity - len(self._running) - len(self._stuck)

    def _load(self) -> WorkerLoad:
        bounds = [run.claimed.max_neighbors for run in self._running.values() if run.claimed.max_neighbors is not None]
        return WorkerLoad(len(self._running) + len(self._stuck), min(bounds) + 1 if bounds else None)

    async def _claim_loop(self) -> None:
        """Claim whenever there is a slot and perhaps work. Any error is waited out: the loop ends only by drain."""
        while not self._draining:
            self.health.claim_loop_turned_at = time.monotonic()
            slots = self._free_slots()
            if slots <= 0:
                self._slot_free.clear()
                await _wait(self._slot_free, 1.0)
                continue
            if not self._may_claim.is_set():
                await _wait(self._may_claim, 1.0)
                continue
            try:
                outcome = await self._claim(slots)
            except Unavailable as error:
                outage.failed("a claim", str(error))
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            except Exception:
                # Runs may have been taken that nobody executes; under our heartbeat they would wait for ever.
                log.exception("claim_failed")
                self._give_up_life("a claim failed in an unexpected way")
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if not outcome.alive:
                # Also when a late renewal may still come: a lease that ended once is over.
                self._give_up_life("the database says that its lease is over")
            elif not outcome.claims and not outcome.again:
                # Waiting for a bell is no standstill, however long the poll interval is.
                self.health.claim_loop_turned_at = time.monotonic() + self._memory.poll_seconds
                await self._listener.wait(self._memory.names, self._memory.poll_seconds)

    async def _claim(self, slots: int) -> ClaimOutcome:
        incarnation = self._incarnation
        if incarnation is None or not incarnation.may_work():
            self._may_claim.clear()
            self._give_up_life("its lease could not be renewed in time")
            return ClaimOutcome((), alive=True, again=True)

        outcome = ClaimOutcome((), alive=True, again=True)
        load = self._load()

        async def work(session: Session) -> None:
            nonlocal outcome
            outcome = await claim(session, incarnation.worker_id, self._targets, slots, self._memory, load)
            if outcome.claims:
                failpoint("claim.before_commit")

        try:
            await self._database.transact(work)
        except CommitInDoubt as doubt:
            outcome = await self._resolve(doubt, incarnation, outcome)
        if outcome.claims:
            failpoint("claim.committed")
        if incarnation is not self._incarnation:
            return ClaimOutcome((), alive=True, again=True)
        for claimed in outcome.claims:
            self._start(claimed)
        self._bus.publish([claimed.notice for claimed in outcome.claims])
        if len(outcome.claims) == slots:
            # There may be more than one worker can take: the next one is called by us, not by every accept.
            self._bus.ring({claimed.lane for claimed in outcome.claims})
        return outcome

    async def _resolve(self, doubt: CommitInDoubt, incarnation: Registration, outcome: ClaimOutcome) -> ClaimOutcome:
        """The claims that committed although the answer was lost. Taken but not executed, they would wait for ever."""
        nothing = ClaimOutcome((), alive=True, again=True)
        while doubt.mark is not None and incarnation.may_work():
            try:
                if not await self._database.was_committed(doubt.mark):
                    return nothing
                # After a crash another worker may have made the very same claim, under the same number even.
                owned = await owned_runs(self._database, incarnation.worker_id)
                claims = [claimed for claimed in outcome.claims if (claimed.run_id, claimed.attempt) in owned]
                return ClaimOutcome(claims, alive=True, again=True)
            except Unavailable:
                await asyncio.sleep(_PAUSE_SECONDS)
        if doubt.mark is not None and incarnation is self._incarnation:
            self._give_up_life("a claim's outcome could not be found out in time")
        return nothing

    # --- executing

    def _job(self, target: str) -> Task | RunExecutor:
        task = self._tasks.get(target)
        if task is not None:
            return task
        if self._orchestrations is None:
            raise LookupError(f"claimed {target}, which this worker cannot execute")
        return self._orchestrations

    def _start(self, claimed: Claimed) -> None:
        execution = Execution(claimed, self._job(claimed.target), self, self._loop)
        self._running[claimed.run_id] = execution
        if self.narrate:
            log.info("run_started", task=claimed.target, run_id=claimed.run_id, attempt=claimed.tries)
        if claimed.attempt == 1:
            metrics.START_SECONDS.observe((claimed.claimed_at_us - claimed.accepted_at_us) / 1_000_000)
        execution.task = asyncio.create_task(self._execute(execution))

    async def _execute(self, execution: Execution) -> None:
        claimed, begun = execution.claimed, time.monotonic()
        set_log_context(claimed.run_id, claimed.attempt, claimed.tenant, self.worker_id)
        try:
            await (execution.run() if tracing.provider() is None else self._run_traced(execution))
            if execution.has_ended:
                await notify_parent(self._database, self._bus, claimed)
        except (LeaseLost, asyncio.CancelledError):
            pass  # stopped by us; whoever stopped it has the last word
        except Exception as error:
            # The database refused what the run wanted to say. Its run must not stay behind as running.
            log.exception("run_not_stored", run_id=execution.claimed.run_id)
            await self._end_anyway(execution, error)
        finally:
            metrics.RUN_SECONDS.observe(time.monotonic() - begun)
            self._ended(execution)
            if self.narrate:
                log.info(
                    execution.log_event,
                    task=execution.claimed.target,
                    run_id=execution.claimed.run_id,
                    **execution.log_fields(),
                )

    async def _run_traced(self, execution: Execution) -> None:
        claimed = execution.claimed
        attributes = {
            "runlane.run_id": claimed.run_id,
            "runlane.attempt": claimed.attempt,
            "runlane.lane": claimed.lane,
            "runlane.tenant": claimed.tenant,
            "runlane.worker": self.worker_id,
        }
        with tracing.span(f"run {claimed.target}", attributes, claimed.trace) as span:
            await execution.run()
            tracing.set_attributes(span, execution.log_fields())

    async def _end_anyway(self, execution: Execution, error: Exception) -> None:
        message = {
            "type": "NotStored",
            "message": f"The end of the attempt could not be stored: {type(error).__name__}.",
        }
        try:
            await execution.end(Finish(AttemptOutcome.FAILED, Status.FAILED, error=dump_json(message)))
        except Exception:
            log.exception("run_left_to_reaper", run_id=execution.claimed.run_id)
            self._give_up_life("the end of an attempt could not be stored")

    def _ended(self, execution: Execution) -> None:
        if self._running.get(execution.claimed.run_id) is execution:
            del self._running[execution.claimed.run_id]
        self._slot_free.set()
        if self._frees_more_than_a_slot(execution.claimed):
            # The claim loop may be waiting for a bell that no other process rings.
            self._listener.wake()
        if not self._running:
            self._all_done.set()

    def _frees_more_than_a_slot(self, claimed: Claimed) -> bool:
        """Whether runs may fit that did not fit before, although this worker had free slots."""
        memory = self._memory
        return (
            claimed.lane in memory.capped
            or claimed.tenant in memory.capped_tenants
            or claimed.max_neighbors is not None
        )

    def interrupt(self, execution: Execution, reason: StopReason) -> None:
        """Stop an execution for this reason, and see that it stops."""
        if not execution.interrupt(reason):
            return
        watching = asyncio.create_task(self._see_it_stop(execution, reason))
        self._background.add(watching)
        watching.add_done_callback(self._background.discard)

    async def _see_it_stop(self, execution: Execution, reason: StopReason) -> None:
        """Wait for interrupted code; past its time, end the run without it and count the slot until it stops."""
        task = execution.task
        if task is None:
            return
        patience = 0.0 if reason is StopReason.LOST else self._settings.cancel_grace_seconds
        if reason is StopReason.HAND_BACK:
            patience = min(patience, 1.0)
        deadline = self._loop.time() + patience
        while not task.done() and self._loop.time() < deadline:
            await asyncio.wait([task], timeout=min(1.0, max(0.01, deadline - self._loop.time())))
            if not task.done():
                execution.nudge()
        if task.done() or execution.abandoned or (execution.ending and reason is not StopReason.LOST):
            return
        finish = execution.abandon()
        self._stuck.add(task)
        task.add_done_callback(self._unstick)
        self._ended(execution)
        if finish is not None:
            try:
                await execution.end(finish)
            except Exception as error:
                log.exception("run_not_stored", run_id=execution.claimed.run_id)
                await self._end_anyway(execution, error)

    def _unstick(self, task: asyncio.Future[Any]) -> None:
        self._stuck.discard(task)
        self._slot_free.set()

    # --- what others tell us

    def _begin(self, incarnation: Registration) -> None:
        self._incarnation = incarnation
        self._may_claim.set()

    def _lose(self, incarnation: Registration) -> None:
        """Stop everything of a life that is over. Nothing is written: the fence would refuse it."""
        if incarnation is not self._incarnation:
            return
        self._incarnation = None
        self._may_claim.clear()
        for execution in list(self._running.values()):
            self.interrupt(execution, StopReason.LOST)
        self._liveness.check_now()

    def _give_up_life(self, reason: str) -> None:
        """Become somebody else: the reaper moves whatever the old name still owns."""
        if self._incarnation is not None:
            log.error("worker_gives_up", worker_id=self._incarnation.worker_id, reason=reason)
            self._incarnation.lost = True
            self._lose(self._incarnation)

    def _stuck_for_good(self) -> None:
        self.on_stuck()

    def _hear_cancels(self, incarnation: Registration, cancels: Sequence[tuple[str, int]]) -> None:
        if incarnation is self._incarnation:
            for run_id, attempt in cancels:
                execution = self._running.get(run_id)
                if execution is not None and execution.claimed.attempt == attempt:
                    self.interrupt(execution, StopReason.CANCEL)

    def _cancel(self, run_id: str) -> None:
        execution = self._running.get(run_id)
        if execution is not None:
            self.interrupt(execution, StopReason.CANCEL)

    # --- ending

    async def _drain(self, grace_seconds: float) -> None:
        begun = time.monotonic()
        late = self._settings.drain_handover == "late"
        margin = min(_HANDOVER_SECONDS, grace_seconds * _HANDOVER_SHARE)
        self._handover_at = begun + grace_seconds - margin if late else begun
        self._draining = self.health.draining = True
        failpoint("drain.begun")
        for event in (self._may_claim, self._slot_free):
            event.set()
        self._listener.wake()
        if self._claimer is not None:
            await self._claimer
            self._claimer = None
        if self._incarnation is not None:
            log.info("worker_draining", worker_id=self.worker_id, active=self.active)
            try:
                await begin_draining(self._database, self._incarnation.worker_id)
            except Unavailable as error:
                log.warning("drain_not_told", error=str(error))
        if self._running:
            self._all_done.clear()
            hurry = asyncio.create_task(self._hurry.wait())
            done = asyncio.create_task(self._all_done.wait())
            await asyncio.wait([hurry, done], timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            done.cancel()
        for execution in list(self._running.values()):
            self.interrupt(execution, StopReason.HAND_BACK)
        # Those that see executions stop come first: they give up code that does not, which is waited for no longer.
        if self._background:
            await asyncio.wait(self._background, timeout=_LAST_WRITES_SECONDS)
        ending = [execution.task for execution in self._running.values() if execution.task is not None]
        if ending:
            await asyncio.wait(ending, timeout=_LAST_WRITES_SECONDS)


def _leave_alone() -> None: ...


async def _wait(event: asyncio.Event, timeout_seconds: float) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            await event.wait()
    except TimeoutError:
        pass
