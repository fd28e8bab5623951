"""Runs of orchestrations: the step machine decides, steps are performed, and every finished one is recorded.

A step that may have an effect outside begins only when everything before it is stored. Steps that only compute may
run ahead of the commit: after a crash they are computed again and give the same. So what a run has paid for is never
paid twice, and a chain of small steps does not wait for the disk between each two.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from runlane.agents.inflight import InflightCalls
from runlane.agents.journal import Journal
from runlane.definitions.schema.definition import Agent, Orchestration
from runlane.domain.events import EventType
from runlane.domain.text import dump_json, load_json
from runlane.interpreter.failure import timeout_message
from runlane.interpreter.machine import Machine
from runlane.interpreter.routing import EXPIRED
from runlane.interpreter.values import Done, EndStatus, Failed, OrchestrationEnd, Outcome, PendingStep
from runlane.observability import metrics
from runlane.orchestration.budget import SpendingTracker
from runlane.orchestration.finish import HANDED_BACK, AttemptFinisher
from runlane.orchestration.history import History
from runlane.orchestration.memory import HOLD_SECONDS, TOO_LARGE, AttemptMemory, AttemptStepMemory
from runlane.orchestration.outbox import Outbox
from runlane.orchestration.pinned import PinnedDefinitions
from runlane.orchestration.replay import record_of, remember_nested, restore, was_refused
from runlane.orchestration.retry_unavailable import retry_unavailable
from runlane.orchestration.snapshots import Snapshots
from runlane.orchestration.waits import InnerKey, OpenWaits
from runlane.steps.dispatch import RunServices, StepWait, Suspended, WaitKind, perform_step
from runlane.steps.memory import MemoryTimeout
from runlane.steps.wait_steps import until_room
from runlane.store.orchestration.calls import CallRecord, read_calls_of
from runlane.store.orchestration.steps import SNAPSHOT_PATH, StepOutcome, StepRecord, read_way
from runlane.store.orchestration.waits import read_waits
from runlane.store.queue.claim import Claimed
from runlane.store.queue.events import has_event
from runlane.store.queue.record import Finish
from runlane.store.queue.runs import running_seconds
from runlane.store.sql.database import Database
from runlane.worker.execution import AttemptEnd
from runlane.worker.open_answers import StepAnswers
from runlane.worker.run_host import RunHost

_START = EventType.ORCHESTRATION_START
# Only computed: no model, no tool, nobody outside notices them.
_COMPUTED = frozenset({"transform", "print", "if_else", "switch", "merge", "extract_json", "loop", "human", "wait"})
_ASKS_MODELS = frozenset({"llm", "agent", "tool", "evaluator"})
# How soon a run that is busy in one branch learns that somebody answered in another.
_ANSWER_SECONDS = 1.0
_LAST_WORDS_SECONDS = 2.0
# Steps that only compute run ahead of the commit by this much.
MAX_AHEAD_BYTES = 8 * 1024 * 1024

# How long the end of a run waits for answers that nobody wants any more and that have to be paid for.
LAND_SECONDS = 30.0

Result = Outcome | StepWait | Suspended
# Says how the attempt ends, once nothing more can happen in it.
Conclude = Callable[[], Finish]


class OrchestrationAttempt:
    """One attempt at a run of an orchestration."""

    def __init__(
        self,
        claimed: Claimed,
        desk: RunHost,
        database: Database,
        material: PinnedDefinitions,
        tools: RunServices,
        root: Orchestration,
        account: AttemptMemory,
        max_run_bytes: int,
    ) -> None:
        self._claimed = claimed
        self._desk = desk
        self._database = database
        self._material = material
        self._tools = tools
        self._root = root
        self._account = account
        self._max_run_bytes = max_run_bytes
        self._outbox = Outbox(claimed, desk, account)
        self._ends = AttemptFinisher(self._outbox, desk.max_result_bytes)
        self._questions = OpenWaits()
        self._flights = InflightCalls(claimed.attempt)
        self._looked_at = time.monotonic()
        self._busy: dict[str, asyncio.Task[Result]] = {}
        self._begun: dict[str, tuple[PendingStep, float]] = {}
        self._dropped: set[asyncio.Task[Result]] = set()
        # Steps that wait inside, with the seconds that they took until then.
        self._held: dict[str, float] = {}
        self._calls: dict[str, list[CallRecord]] = {}
        self._journals: dict[str, Journal] = {}
        self._spending = SpendingTracker(claimed, database, self._journal)
        self._history = History()
        self._machine: Machine
        self._no = 0
        self._snapshots = Snapshots()

    async def run(self) -> AttemptEnd:
        """Go on where the records end, until the run ends or nothing can move without somebody outside."""
        await self._restore()
        try:
            conclude = await self._go_in_time()
            await self._stop_steps()
            await self._land()
        except asyncio.CancelledError:
            await self._cut_off()
            # What is finished is kept, also by a run that is stopped: the next attempt must not pay for it again.
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(self._outbox.store(), _LAST_WORDS_SECONDS)
            raise
        finally:
            await self._cut_off()
        return AttemptEnd(conclude(), await self._outbox.rest())

    async def _go_in_time(self) -> Conclude:
        limit = asyncio.timeout(await self._seconds_left())
        try:
            async with limit:
                return await self._go()
        except TimeoutError:
            if not limit.expired():
                raise
            minutes = self._root.timeout_minutes
            error = Failed("run_timeout", f"The run took longer than its {minutes:g} minutes of running time.")
            return partial(self._ends.fail, OrchestrationEnd(EndStatus.FAILED, None, self._machine.state, error))

    # --- where the run stands

    async def _restore(self) -> None:
        claimed = self._claimed
        plan: dict[str, Any] = load_json(claimed.plan) if claimed.plan else {}
        first = claimed.attempt == 1
        fresh = first and "fork" not in plan
        way = [] if fresh else await retry_unavailable(lambda: read_way(self._database, claimed.run_id))
        material = self._material
        # What stands for an agent is known to nobody else.
        pinned = [*material.orchestrations.values(), *material.agents.values(), self._root]
        self._machine, self._no = restore(self._root, load_json(claimed.input), plan, pinned, way, self._history.add)
        if first or not await retry_unavailable(lambda: has_event(self._database, claimed.run_id, _START)):
            self._outbox.add_event(
                _START,
                orchestration_id=self._root.id,
                orchestration_name=self._root.title,
            )
            self._outbox.add_step_events(self._machine.opening)
        if not first:
            self._spending.learn(way)
            open_paths = ["", *(todo.path for todo in self._machine.todos())]
            for call in await retry_unavailable(lambda: read_calls_of(self._database, claimed.run_id, open_paths)):
                self._calls.setdefault(call.path, []).append(call)
            # All of them before the first step goes on: its budget counts what the others have spent.
            for path in list(self._calls):
                self._journal(path)
            await self._learn()

    async def _seconds_left(self) -> float:
        allowed = self._root.timeout_minutes * 60
        if self._claimed.attempt == 1:
            return allowed
        return allowed - await retry_unavailable(lambda: running_seconds(self._database, self._claimed.run_id))

    async def _learn(self) -> None:
        self._looked_at = time.monotonic()
        await self._outbox.store()
        waits = await retry_unavailable(lambda: read_waits(self._database, self._claimed.run_id))
        self._questions.learn(waits, self._machine.todos())

    # --- the loop

    async def _go(self) -> Conclude:
        await self._find_room()
        while True:
            await self._take_answers()
            if self._machine.end is not None:
                return partial(self._ends.finish, self._machine.end)
            excess = self._excess()
            if excess is not None:
                error = Failed(TOO_LARGE, excess)
                return partial(self._ends.fail, OrchestrationEnd(EndStatus.FAILED, None, self._machine.state, error))
            if self._outbox.pending_bytes > MAX_AHEAD_BYTES:
                await self._outbox.store()
            if not self._desk.handing_over:
                await self._begin()
            if not self._busy:
                if self._desk.handing_over:
                    return lambda: HANDED_BACK
                return partial(self._ends.pause, self._questions, self._machine.state)
            self._outbox.store_soon()
            await self._wait()
            self._take_done()
            self._drop_unneeded()

    async def _find_room(self) -> None:
        """Wait for room for the state; without it, pause the run for a while."""
        try:
            await self._account.admit(self._machine.state_bytes)
        except MemoryTimeout as wait:
            # A key of this attempt: the wait of an earlier one is over, and would let the step begin.
            waiting = until_room(wait, f"room/{self._claimed.attempt}")
            for todo in self._machine.todos():
                if todo.path not in self._questions:
                    self._ask(todo, waiting)

    def _excess(self) -> str | None:
        """Return why the run has become too large to continue, if it has."""
        if self._outbox.written_bytes > self._max_run_bytes:
            return (
                f"One attempt at the run wrote more than {self._max_run_bytes} bytes of events and step records "
                "(RUNLANE_MAX_RUN_BYTES). Let its steps produce less, or split it into several runs."
            )
        return self._account.excess()

    async def _begin(self) -> None:
        """Begin everything that may begin now."""
        fresh = [
            todo for todo in self._machine.todos() if todo.path not in self._busy and todo.path not in self._questions
        ]
        for todo in fresh:
            if todo.tries == 0 and todo.part == "step" and todo.path not in self._held:
                self._outbox.say_step(EventType.STEP_START, todo)
        if any(todo.step.type not in _COMPUTED for todo in fresh):
            await self._outbox.store()
        for todo in fresh:
            self._begun[todo.path] = (todo, time.monotonic())
            self._busy[todo.path] = asyncio.create_task(self._perform(todo))

    async def _perform(self, todo: PendingStep) -> Result:
        if todo.delay_seconds > 0 and todo.path not in self._held:
            if todo.delay_seconds > HOLD_SECONDS:
                key = f"retry/{todo.tries}"
                return Suspended(
                    (StepWait(kind=WaitKind.TIME, due_in_seconds=todo.delay_seconds, name="retry", key=key),)
                )
            await asyncio.sleep(todo.delay_seconds)
        limit = asyncio.timeout(todo.step.timeout_seconds)
        room = AttemptStepMemory(self._account)
        try:
            async with limit:
                return await perform_step(todo, self._tools_for(todo, room))
        except TimeoutError:
            return Failed("timeout", timeout_message(todo.step.timeout_seconds), retryable=True)
        finally:
            room.close()
            self._desk.open_answers.close(self._claimed.run_id, todo.path)

    def _tools_for(self, todo: PendingStep, room: AttemptStepMemory) -> RunServices:
        claimed, desk = self._claimed, self._desk

        async def emit(kind: str, data: Mapping[str, Any]) -> None:
            note(kind, data)
            self._outbox.store_soon()

        def note(kind: str, data: Mapping[str, Any]) -> None:
            about = {"orch_step_id": todo.step.id, "step_name": todo.step.title, "path": todo.path}
            self._outbox.add_event(kind, **{**about, **data})
            if kind == "model_response":
                self._desk.open_answers.close(claimed.run_id, todo.path)

        async def check_budget(agent: Agent | None, step_cap: float | None) -> None:
            await self._spending.check(self._machine, self._journals, todo, agent, step_cap)

        return replace(
            self._tools,
            emit=emit,
            note=note,
            delta=StepAnswers(
                desk.open_answers, claimed.run_id, claimed.attempt, todo.step.id, todo.path, desk.send_delta
            ),
            history=self._history.before(todo.path),
            journal=self._journal(todo.path) if todo.step.type in _ASKS_MODELS else self._tools.journal,
            check_budget=check_budget,
            doubt_budget=partial(self._spending.doubt, todo.path),
            flights=self._flights,
            room=room,
        )

    def _journal(self, path: str) -> Journal:
        """What is known of the calls of a step, or, without a path, of the run as a whole."""
        journal = self._journals.get(path)
        if journal is None:
            known = self._calls.pop(path, [])
            journal = Journal(self._claimed.run_id, path, self._outbox.keep_call, known)
            self._journals[path] = journal
        return journal

    async def _wait(self) -> None:
        """Until a step is done, a commit is through, or an open question may have an answer."""
        timeout = None
        if self._questions:
            due = self._questions.seconds_left()
            timeout = _ANSWER_SECONDS if due is None else min(_ANSWER_SECONDS, due)
        storing = self._outbox.under_way
        watched = {*self._busy.values(), *([] if storing is None else [storing])}
        await asyncio.wait(watched, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if self._questions and time.monotonic() - self._looked_at >= _ANSWER_SECONDS:
            await self._learn()

    # --- what a step came to

    def _take_done(self) -> None:
        for path, task in list(self._busy.items()):
            if not task.done():
                continue
            del self._busy[path]
            todo, begun = self._begun.pop(path)
            result = Failed("cancelled", "The step was cancelled from inside.") if task.cancelled() else task.result()
            seconds = time.monotonic() - begun + self._held.get(path, 0.0)
            if isinstance(result, StepWait):
                self._ask(todo, result)
                continue
            if isinstance(result, Suspended):
                self._held[path] = seconds
                for waiting in result.waits:
                    self._ask(todo, waiting)
                continue
            self._settle(todo, result, seconds)
            if self._machine.end is not None:
                return

    def _drop_unneeded(self) -> None:
        """Stop what the machine has given up: the other branches of one that failed, for example."""
        needed = {todo.path for todo in self._machine.todos()}
        for path in [path for path in self._busy if path not in needed]:
            task = self._busy.pop(path)
            del self._begun[path]
            task.cancel()
            self._dropped.add(task)
            task.add_done_callback(self._dropped.discard)
        for path in self._questions.drop_all_but(needed):
            self._outbox.close_wait(path)

    async def _take_answers(self) -> None:
        for todo, key, outcome, over in self._questions.answered():
            for path in over:
                self._outbox.close_wait(path)
            if key is not None:
                await self._take_inner_answer(todo, key, outcome)
                continue
            self._settle(todo, outcome, 0.0)
            if self._machine.end is not None:
                return

    async def _take_inner_answer(self, todo: PendingStep, key: InnerKey, outcome: Done) -> None:
        """The step is performed again, and its journal has the answer. One that nobody gave in time is none."""
        if key.kind != WaitKind.TIME.value:
            answer = outcome.output if outcome.route is None else {"decision": "expired"}
            if key.aside is not None:
                answer = {**answer, **key.aside}
        elif key.aside is not None:
            answer = key.aside
        else:
            return
        await self._journal("" if key.shared else todo.path).keep_answer(key.key, answer)

    def _ask(self, todo: PendingStep, waiting: StepWait) -> None:
        asked = self._questions.ask(todo, waiting)
        if asked is None:
            return
        wait, shown = asked
        self._outbox.ask(wait)
        if waiting.kind is WaitKind.HUMAN:
            self._outbox.add_event(
                EventType.HUMAN_INPUT_REQUIRED,
                orch_step_id=todo.step.id,
                path=wait.path,
                prompt=shown["prompt"],
                fields=shown["fields"],
                agent_context=shown["context"],
                channel_id=shown["channel_id"],
                answerable_by=shown["answerable_by"],
            )

    def _settle(self, todo: PendingStep, outcome: Outcome, seconds: float) -> None:
        metrics.STEP_SECONDS.observe(seconds)
        self._held.pop(todo.path, None)
        outcome = self._spending.complete(todo.path, outcome)
        facts = self._machine.complete(todo.path, outcome)
        self._account.hold_state(self._machine.state_bytes)
        over = all(other.path != todo.path for other in self._machine.todos())
        if over and todo.path in self._journals and not self._flights.of(todo.path):
            del self._journals[todo.path]
        self._no += 1
        record = record_of(todo, outcome, self._machine, self._no, seconds)
        self._outbox.keep(record)
        if isinstance(outcome, Done) and todo.part == "step" and not was_refused(todo.path, facts):
            self._history.add(todo.path, todo.step.id, todo.step.title, outcome.output)
            spent = {"cost_usd": outcome.cost_usd, "tokens": outcome.tokens or None, "expired": _expired(outcome)}
            told = {name: value for name, value in spent.items() if value is not None}
            self._outbox.say_step(EventType.STEP_COMPLETE, todo, duration_seconds=round(seconds, 6), **told)
        remember_nested(facts, self._history.add)
        self._outbox.add_step_events(facts)
        if self._snapshots.is_due(record, self._machine):
            cursor = dump_json(self._machine.cursor())
            self._outbox.keep(StepRecord(SNAPSHOT_PATH, self._no, "", "snapshot", StepOutcome.SNAPSHOT, output=cursor))

    # --- the ends

    async def _land(self) -> None:
        """Let the calls of steps that were given up come to their end: they are billed, so the run has to tell them."""
        for todo in await self._flights.drain(LAND_SECONDS):
            message = (
                f"A call of a model was cut off, {LAND_SECONDS:g} s after its step was given up. Its provider may bill "
                "it, and it is not in the usage."
            )
            self._outbox.say_step(EventType.STEP_WARNING, todo, message=message, code="call_cut_off")

    async def _cut_off(self) -> None:
        await self._stop_steps()
        await self._flights.stop()

    async def _stop_steps(self) -> None:
        self._outbox.hold_back()
        for task in self._busy.values():
            task.cancel()
        stopping = {*self._busy.values(), *self._dropped}
        if stopping:
            await asyncio.wait(stopping)
            self._busy.clear()


def _expired(done: Done) -> bool | None:
    return True if done.route == EXPIRED else None
