"""One attempt at a run of an orchestration: ask the machine for steps, perform them, and record each outcome.

A step that may have an external effect begins only when everything before it is stored. Steps that only compute may run
ahead of the commit: after a crash they are computed again with the same result. No recorded call is therefore billed
twice, and a chain of small steps does not wait for the disk after each step.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from runlane.definitions.schema.definition import Orchestration
from runlane.domain.events import EventType
from runlane.domain.text import dump_json, load_json
from runlane.interpreter.failure import timeout_message
from runlane.interpreter.machine import Machine
from runlane.interpreter.routing import EXPIRED
from runlane.interpreter.values import Done, EndStatus, Failed, OrchestrationEnd, Outcome, PendingStep
from runlane.observability import metrics
from runlane.orchestration.finish import HANDED_BACK, AttemptFinisher
from runlane.orchestration.memory_budget import HOLD_SECONDS, TOO_LARGE, AttemptMemory, AttemptStepMemory
from runlane.orchestration.outbox import Outbox
from runlane.orchestration.pinned import PinnedDefinitions
from runlane.orchestration.replay import record_of, remember_nested, restore, was_refused
from runlane.orchestration.retry_unavailable import retry_unavailable
from runlane.orchestration.snapshots import Snapshots
from runlane.orchestration.step_contexts import StepContexts
from runlane.orchestration.waits import InnerKey, OpenWaits
from runlane.steps.dispatch import RunServices, StepWait, Suspended, WaitKind, perform_step
from runlane.steps.memory_budget import MemoryTimeout
from runlane.steps.wait_steps import until_room
from runlane.store.orchestration.calls import read_calls_of, read_earlier_calls
from runlane.store.orchestration.resume import read_waits_decided
from runlane.store.orchestration.steps import SNAPSHOT_PATH, StepOutcome, StepRecord, read_replay_records
from runlane.store.orchestration.waits import Wait, read_waits
from runlane.store.queue.claim import Claimed
from runlane.store.queue.events import has_event
from runlane.store.queue.record import Finish
from runlane.store.queue.runs import running_seconds
from runlane.store.sql.database import Database
from runlane.worker.execution import AttemptEnd
from runlane.worker.run_host import RunHost

_START = EventType.ORCHESTRATION_START
# Steps that only compute: they call no model and no tool and have no external effect.
_COMPUTED = frozenset({"transform", "print", "if_else", "switch", "merge", "extract_json", "loop", "human", "wait"})
# How soon an answer for one branch is read while another branch is executed.
_ANSWER_SECONDS = 1.0
_FINAL_STORE_SECONDS = 2.0
# Steps that only compute may run ahead of the commit by this much.
MAX_AHEAD_BYTES = 8 * 1024 * 1024

# How long the end of a run waits for model calls of abandoned steps, which are billed.
DRAIN_SECONDS = 30.0

Result = Outcome | StepWait | Suspended
# Returns the end of the attempt, once no step is left to perform.
Ending = Callable[[], Finish]


class OrchestrationAttempt:
    """One attempt at a run of an orchestration."""

    def __init__(
        self,
        claimed: Claimed,
        host: RunHost,
        database: Database,
        definitions: PinnedDefinitions,
        services: RunServices,
        root: Orchestration,
        memory: AttemptMemory,
        max_run_bytes: int,
    ) -> None:
        self._claimed = claimed
        self._host = host
        self._database = database
        self._definitions = definitions
        self._root = root
        self._memory = memory
        self._max_run_bytes = max_run_bytes
        self._outbox = Outbox(claimed, host, memory)
        self._finisher = AttemptFinisher(self._outbox, host.max_result_bytes)
        self._waits = OpenWaits()
        self._inflight = services.inflight
        self._contexts = StepContexts(claimed, host, database, services, self._outbox)
        self._spending, self._history = self._contexts.spending, self._contexts.history
        self._waits_read_at = time.monotonic()
        self._running: dict[str, asyncio.Task[Result]] = {}
        self._started: dict[str, tuple[PendingStep, float]] = {}
        self._dropped: set[asyncio.Task[Result]] = set()
        # Suspended steps, with the seconds that they have taken.
        self._suspended: dict[str, float] = {}
        self._machine: Machine
        self._number = 0
        self._snapshots = Snapshots()

    async def run(self) -> AttemptEnd:
        """Continue after the records, until the run ends or has to wait for an answer, a time or an event."""
        await self._restore()
        try:
            finish = await self._advance_in_time()
            await self._stop_steps()
            await self._drain_calls()
        except asyncio.CancelledError:
            await self._stop_everything()
            # Outcomes are stored even if the run is stopped, so that the next attempt does not pay for them again.
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(self._outbox.store(), _FINAL_STORE_SECONDS)
            raise
        finally:
            await self._stop_everything()
        return AttemptEnd(finish(), await self._outbox.rest())

    async def _advance_in_time(self) -> Ending:
        limit = asyncio.timeout(await self._seconds_left())
        try:
            async with limit:
                return await self._advance()
        except TimeoutError:
            if not limit.expired():
                raise
            minutes = self._root.timeout_minutes
            error = Failed("run_timeout", f"The run took longer than its {minutes:g} minutes of running time.")
            return partial(self._finisher.fail, OrchestrationEnd(EndStatus.FAILED, None, self._machine.state, error))

    # --- position

    async def _restore(self) -> None:
        claimed = self._claimed
        plan: dict[str, Any] = load_json(claimed.plan) if claimed.plan else {}
        first = claimed.attempt == 1
        fresh = first and "fork" not in plan
        records = [] if fresh else await retry_unavailable(lambda: read_replay_records(self._database, claimed.run_id))
        definitions = self._definitions
        # The root of a run of an agent is not among the pinned definitions.
        pinned = [*definitions.orchestrations.values(), *definitions.agents.values(), self._root]
        self._machine, self._number = restore(
            self._root, load_json(claimed.input), plan, pinned, records, self._history.add
        )
        if first or not await retry_unavailable(lambda: has_event(self._database, claimed.run_id, _START)):
            self._outbox.add_event(
                _START,
                orchestration_id=self._root.id,
                orchestration_name=self._root.title,
            )
            self._outbox.add_step_events(self._machine.opening)
        calls = []
        if "fork" in plan:
            calls = await retry_unavailable(lambda: read_earlier_calls(self._database, claimed.run_id))
        if not first:
            self._spending.learn(records)
            open_paths = ["", *(pending.path for pending in self._machine.pending_steps())]
            calls += await retry_unavailable(lambda: read_calls_of(self._database, claimed.run_id, open_paths))
        self._contexts.restore(calls)
        if not first:
            await self._load_waits()

    async def _seconds_left(self) -> float:
        allowed = self._root.timeout_minutes * 60
        if self._claimed.attempt == 1:
            return allowed
        return allowed - await retry_unavailable(lambda: running_seconds(self._database, self._claimed.run_id))

    async def _load_waits(self, read: Callable[[Database, str], Awaitable[list[Wait]]] = read_waits) -> list[Wait]:
        self._waits_read_at = time.monotonic()
        await self._outbox.store()
        waits = await retry_unavailable(lambda: read(self._database, self._claimed.run_id))
        self._waits.learn(waits, self._machine.pending_steps())
        return waits

    # --- the loop

    async def _advance(self) -> Ending:
        await self._reserve_memory()
        while True:
            await self._take_answers()
            if self._machine.end is not None:
                return partial(self._finisher.finish, self._machine.end)
            excess = self._excess()
            if excess is not None:
                error = Failed(TOO_LARGE, excess)
                return partial(
                    self._finisher.fail, OrchestrationEnd(EndStatus.FAILED, None, self._machine.state, error)
                )
            if self._outbox.pending_bytes > MAX_AHEAD_BYTES:
                await self._outbox.store()
            if not self._host.handing_over:
                await self._start_ready()
            if not self._running:
                if self._host.handing_over:
                    return lambda: HANDED_BACK
                return partial(self._finisher.pause, self._waits, self._machine.state)
            self._outbox.store_soon()
            await self._wait()
            self._take_done()
            self._drop_unneeded()

    async def _reserve_memory(self) -> None:
        """Reserve memory for the state. If none is available in time, pause the run for some seconds."""
        try:
            await self._memory.admit(self._machine.state_bytes)
        except MemoryTimeout as wait:
            # The key contains the attempt, because the wait of an earlier attempt is over and would let the step begin.
            waiting = until_room(wait, f"room/{self._claimed.attempt}")
            for pending in self._machine.pending_steps():
                if pending.path not in self._waits:
                    self._open_wait(pending, waiting)

    def _excess(self) -> str | None:
        """Return why the run is too large to continue, or None."""
        if self._outbox.written_bytes > self._max_run_bytes:
            return (
                f"One attempt at the run wrote more than {self._max_run_bytes} bytes of events and step records "
                "(RUNLANE_MAX_RUN_BYTES). Make its steps produce less, or split it into several runs."
            )
        return self._memory.excess()

    async def _start_ready(self) -> None:
        """Start every step that is ready."""
        fresh = [
            pending
            for pending in self._machine.pending_steps()
            if pending.path not in self._running and pending.path not in self._waits
        ]
        for pending in fresh:
            if pending.tries == 0 and pending.part == "step" and pending.path not in self._suspended:
                self._outbox.emit_step(EventType.STEP_START, pending)
        if any(pending.step.type not in _COMPUTED for pending in fresh):
            await self._outbox.store()
        for pending in fresh:
            self._started[pending.path] = (pending, time.monotonic())
            self._running[pending.path] = asyncio.create_task(self._perform(pending))

    async def _perform(self, pending: PendingStep) -> Result:
        if pending.delay_seconds > 0 and pending.path not in self._suspended:
            if pending.delay_seconds > HOLD_SECONDS:
                key = f"retry/{pending.tries}"
                return Suspended(
                    (StepWait(kind=WaitKind.TIME, due_in_seconds=pending.delay_seconds, name="retry", key=key),)
                )
            await asyncio.sleep(pending.delay_seconds)
        limit = asyncio.timeout(pending.step.timeout_seconds)
        memory = AttemptStepMemory(self._memory)
        try:
            async with limit:
                return await perform_step(self._contexts.context(pending, self._machine, memory))
        except TimeoutError:
            return Failed("timeout", timeout_message(pending.step.timeout_seconds), retryable=True)
        finally:
            memory.close()
            self._host.open_answers.close(self._claimed.run_id, pending.path)

    async def _wait(self) -> None:
        """Wait until a step is done, a commit is complete, or an open question may have an answer."""
        timeout = None
        if self._waits:
            due = self._waits.seconds_left()
            timeout = _ANSWER_SECONDS if due is None else min(_ANSWER_SECONDS, due)
        storing = self._outbox.in_progress
        watched = {*self._running.values(), *([] if storing is None else [storing])}
        await asyncio.wait(watched, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if self._waits and time.monotonic() - self._waits_read_at >= _ANSWER_SECONDS:
            await self._load_waits()

    # --- results of steps

    def _take_done(self) -> None:
        for path, task in list(self._running.items()):
            if not task.done():
                continue
            del self._running[path]
            pending, begun = self._started.pop(path)
            result = Failed("cancelled", "The step was cancelled from inside.") if task.cancelled() else task.result()
            seconds = time.monotonic() - begun + self._suspended.get(path, 0.0)
            if isinstance(result, StepWait):
                self._open_wait(pending, result)
                continue
            if isinstance(result, Suspended):
                self._suspended[path] = seconds
                for waiting in result.waits:
                    self._open_wait(pending, waiting)
                continue
            self._complete(pending, result, seconds)
            if self._machine.end is not None:
                return

    def _drop_unneeded(self) -> None:
        """Stop steps that the machine has dropped, such as the other branches of a failed one."""
        needed = {pending.path for pending in self._machine.pending_steps()}
        for path in [path for path in self._running if path not in needed]:
            task = self._running.pop(path)
            del self._started[path]
            task.cancel()
            self._dropped.add(task)
            task.add_done_callback(self._dropped.discard)
        for path in self._waits.drop_all_but(needed):
            self._outbox.close_wait(path)

    async def _take_answers(self) -> None:
        if self._waits.unconfirmed:
            # An answer may have been stored before the deadline and not been loaded yet.
            self._waits.confirm_expired(await self._load_waits(read_waits_decided))
        for pending, key, outcome, over in self._waits.answered():
            for path in over:
                self._outbox.close_wait(path)
            if key is not None:
                await self._take_inner_answer(pending, key, outcome)
                continue
            self._complete(pending, outcome, 0.0)
            if self._machine.end is not None:
                return

    async def _take_inner_answer(self, pending: PendingStep, key: InnerKey, outcome: Done) -> None:
        """Store the answer in the journal, where the step finds it when it is performed again."""
        if key.kind != WaitKind.TIME.value:
            answer = outcome.output if outcome.route is None else {"decision": "expired"}
            if key.aside is not None:
                answer = {**answer, **key.aside}
        elif key.aside is not None:
            answer = key.aside
        else:
            return
        await self._contexts.journal("" if key.shared else pending.path).keep_answer(key.key, answer)

    def _open_wait(self, pending: PendingStep, waiting: StepWait) -> None:
        opened = self._waits.open(pending, waiting)
        if opened is None:
            return
        wait, shown = opened
        self._outbox.open_wait(wait)
        if waiting.kind is WaitKind.HUMAN:
            self._outbox.add_event(
                EventType.HUMAN_INPUT_REQUIRED,
                orch_step_id=pending.step.id,
                path=wait.path,
                prompt=shown["prompt"],
                fields=shown["fields"],
                agent_context=shown["context"],
                channel_id=shown["channel_id"],
                answerable_by=shown["answerable_by"],
            )

    def _complete(self, pending: PendingStep, outcome: Outcome, seconds: float) -> None:
        metrics.STEP_SECONDS.observe(seconds)
        self._suspended.pop(pending.path, None)
        outcome = self._spending.complete(pending.path, outcome)
        step_events = self._machine.complete(pending.path, outcome)
        self._memory.hold_state(self._machine.state_bytes)
        over = all(other.path != pending.path for other in self._machine.pending_steps())
        if over:
            self._contexts.forget(pending.path)
        self._number += 1
        record = record_of(pending, outcome, self._machine, self._number, seconds)
        self._outbox.keep(record)
        if isinstance(outcome, Done) and pending.part == "step" and not was_refused(pending.path, step_events):
            self._history.add(pending.path, pending.step.id, pending.step.title, outcome.output)
            spent = {"cost_usd": outcome.cost_usd, "tokens": outcome.tokens or None, "expired": _expired(outcome)}
            shown = {name: value for name, value in spent.items() if value is not None}
            self._outbox.emit_step(EventType.STEP_COMPLETE, pending, duration_seconds=round(seconds, 6), **shown)
        remember_nested(step_events, self._history.add)
        self._outbox.add_step_events(step_events)
        if self._snapshots.is_due(record, self._machine):
            cursor = dump_json(self._machine.cursor())
            self._outbox.keep(
                StepRecord(SNAPSHOT_PATH, self._number, "", "snapshot", StepOutcome.SNAPSHOT, output=cursor)
            )

    # --- the end

    async def _drain_calls(self) -> None:
        """Wait for the calls of abandoned steps: they are billed, so they belong to the usage of the run."""
        for pending in await self._inflight.drain(DRAIN_SECONDS):
            message = (
                f"A model call was cancelled {DRAIN_SECONDS:g} s after its step was abandoned. Its provider may bill "
                "it, and it is not in the usage."
            )
            self._outbox.emit_step(EventType.STEP_WARNING, pending, message=message, code="call_cut_off")

    async def _stop_everything(self) -> None:
        await self._stop_steps()
        await self._inflight.stop()

    async def _stop_steps(self) -> None:
        self._outbox.hold_back()
        for task in self._running.values():
            task.cancel()
        stopping = {*self._running.values(), *self._dropped}
        if stopping:
            await asyncio.wait(stopping)
            self._running.clear()


def _expired(done: Done) -> bool | None:
    return True if done.route == EXPIRED else None
