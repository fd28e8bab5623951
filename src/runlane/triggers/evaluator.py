"""The evaluator of triggers: a maintenance service of every process that has a worker.

Only such processes have the tasks that a trigger may start, and may run the code of a condition. All of them are equal:
the rows of `event_outcomes` decide which process starts a run, so any number of evaluators may run, and any of them may
be killed. A pass does not wait for slow conditions, and a tenant that has many of them leaves room for others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from runlane.definitions.schema.trigger import Trigger
from runlane.domain.maintenance import MaintenanceService
from runlane.domain.options import RunOptions
from runlane.domain.run import Accepted
from runlane.domain.task import Task
from runlane.domain.tenant_event import MAX_DEPTH, WAITING_RUNS, Outcome, TenantEvent
from runlane.domain.text import dump_json
from runlane.errors import RateLimited, RunlaneError, TemplateError, Unavailable, UnknownTask
from runlane.failpoints import failpoint
from runlane.interpreter.failure import StepFailed
from runlane.maintenance.service import PeriodicService
from runlane.resources import Resources
from runlane.sandbox.sandbox import Sandbox, SandboxLimits
from runlane.settings import Settings
from runlane.store.events.outcomes import (
    CLAIMED_AT_ONCE,
    MATCHED_AT_ONCE,
    ClaimedPair,
    Decision,
    claim_pairs,
    decide_pair,
    match_events,
    postpone_pair,
)
from runlane.store.queue.accept import NewRun
from runlane.submit.orchestrations import StartRequest, orchestration_run
from runlane.submit.tasks import TaskRequest, task_run
from runlane.templates.template import RenderBudget, render, render_value
from runlane.triggers.waiting_runs import WaitingRuns

log = structlog.get_logger(__name__)

# How long a claimed pair is left to its evaluator, and how long a pair that cannot be decided yet is postponed.
CLAIM_SECONDS: Final = 15.0
_LATER_SECONDS: Final = 5.0
# How long a trigger waits for a worker that has its task, and for room in the limits of its tenant.
_WITHOUT_TASK_SECONDS: Final = 60.0
_LIMITED_SECONDS: Final = 600.0
_IDLE_SECONDS: Final = 60.0
_SANDBOX_PROCESSES: Final = 2
# A pass waits this long for the pairs that it has claimed; slower ones continue beside the next passes.
_PASS_SECONDS: Final = 1.0
# How many pairs a process evaluates at once, and with how many slow ones a tenant gets no more for the moment.
_AT_ONCE: Final = 2 * CLAIMED_AT_ONCE
_SLOW_OF_TENANT: Final = CLAIMED_AT_ONCE // 2
_MAX_REASON: Final = 2000
_INTERNAL: Final = "Internal error. The log of the process has the cause."


class _Later(Exception):
    """The pair cannot be decided by this process now. After `seconds` of age it fails with this message."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class TriggerEvaluator(PeriodicService):
    """Matches stored events with triggers and starts their runs."""

    def __init__(self, settings: Settings, connection: Resources, tasks: Mapping[str, Task]) -> None:
        super().__init__("triggers", _IDLE_SECONDS, self.run_once)
        self._settings = settings
        self._connection = connection
        self._tasks = tasks
        self._waiting = WaitingRuns(connection)
        limits = SandboxLimits.of(settings)
        # The evaluations in progress with their tenants, and those of them for which no pass waits.
        self._evaluating: dict[asyncio.Task[None], str] = {}
        self._slow: set[asyncio.Task[None]] = set()
        # The sandbox starts its processes with the first condition.
        self._sandbox = Sandbox(replace(limits, processes=min(_SANDBOX_PROCESSES, limits.processes)))

    async def stop(self) -> None:
        await super().stop()
        await self._sandbox.close()
        # The evaluations in progress fail with the sandbox, and are left to other processes.
        await self.finish()

    async def run_once(self) -> bool:
        """Match and evaluate some; return True when there may be more."""
        database = self._connection.database
        matched = await database.transact(match_events)
        if matched:
            failpoint("triggers.matched")
        more_waits = await self._waiting.search()
        # Those of earlier passes are slow.
        slow = Counter(self._evaluating.values())
        most = min(CLAIMED_AT_ONCE, _AT_ONCE - slow.total())
        if most <= 0:
            return matched == MATCHED_AT_ONCE or more_waits
        busy = [tenant for tenant, count in slow.items() if count >= _SLOW_OF_TENANT]
        pairs = await claim_pairs(database, CLAIM_SECONDS, most, busy=busy)
        if pairs:
            failpoint("triggers.claimed")
            await self._evaluate_all(pairs)
        return matched == MATCHED_AT_ONCE or len(pairs) == most or more_waits

    async def finish(self) -> None:
        """Wait for the evaluations in progress."""
        await asyncio.gather(*self._evaluating, return_exceptions=True)

    async def _evaluate_all(self, pairs: Sequence[ClaimedPair]) -> None:
        """Begin to evaluate pairs, and wait for those that do not take long."""
        done, slow = await asyncio.wait([self._begin(pair) for pair in pairs], timeout=_PASS_SECONDS)
        self._slow |= slow
        errors = [error for task in done if (error := task.exception()) is not None]
        if errors:
            raise errors[0]

    def _begin(self, pair: ClaimedPair) -> asyncio.Task[None]:
        task = asyncio.create_task(self._evaluate(pair), name=f"runlane-trigger-{pair.event_id}")
        self._evaluating[task] = pair.tenant
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._evaluating[task]
        if task in self._slow:
            self._slow.remove(task)
            # The claim of a pair whose evaluation has failed expires, and it is evaluated again.
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("trigger_not_evaluated", error=str(error))
            self.wake()

    async def _evaluate(self, pair: ClaimedPair) -> None:
        database = self._connection.database
        try:
            verdict = await self._decide_safely(pair)
        except _Later as reason:
            if pair.age_seconds < reason.seconds:
                await postpone_pair(database, pair, _LATER_SECONDS)
                return
            verdict = await decide_pair(database, pair, _failed(reason))
        if isinstance(verdict, RunlaneError):
            await decide_pair(database, pair, _failed(verdict))
        elif isinstance(verdict, Accepted):
            failpoint("triggers.started")
            self._connection.bus.ring({verdict.lane})

    async def _decide_safely(self, pair: ClaimedPair) -> Accepted | RunlaneError | None:
        """Decide a pair. One that this process cannot decide must not stop the others, so it is tried again later."""
        try:
            verdict = await decide_pair(self._connection.database, pair, await self._decide(pair))
        except (_Later, Unavailable):
            raise
        except Exception as error:
            log.exception("trigger_failed", trigger=pair.trigger_id, event_id=pair.event_id, tenant=pair.tenant)
            message = error.public_message if isinstance(error, RunlaneError) else _INTERNAL
            raise _Later(message, _WITHOUT_TASK_SECONDS) from None
        if isinstance(verdict, RateLimited):
            raise _Later(str(verdict), _LIMITED_SECONDS)
        return verdict

    async def _decide(self, pair: ClaimedPair) -> Decision:
        event, trigger = pair.event, pair.trigger
        if event is None:
            return Decision(Outcome.FAILED, "The event was deleted before it was evaluated.")
        if pair.trigger_id == WAITING_RUNS:
            return Decision(Outcome.RESUMED, f"{await self._waiting.resume(event)} waiting runs continue.")
        if trigger is None or not trigger.enabled:
            return Decision(Outcome.FILTERED, "The trigger was removed, or is not enabled.")
        if event.depth >= MAX_DEPTH:
            return Decision(
                Outcome.FAILED,
                f"The event is the end of a chain of {MAX_DEPTH} triggers, which is the limit: they start each other. "
                "Change the condition of one of them.",
            )
        if trigger.run_target is not None and event.data.get("target") != trigger.run_target:
            return Decision(Outcome.FILTERED, f"The trigger is for runs of {trigger.run_target}.")
        try:
            if not await self._holds(trigger, event):
                return Decision(Outcome.FILTERED, "The condition is not true.")
            run = await self._run(trigger, event)
        except Unavailable:
            raise
        except StepFailed as error:
            if error.retryable:
                raise _Later(str(error), _WITHOUT_TASK_SECONDS) from None
            return _failed(error)
        except (RunlaneError, TemplateError) as error:
            return _failed(error)
        return Decision(Outcome.STARTED, run=run)

    async def _holds(self, trigger: Trigger, event: TenantEvent) -> bool:
        if trigger.condition is None:
            return True
        return await self._sandbox.for_tenant(event.tenant).event_condition(trigger.condition, event.to_scope())

    async def _run(self, trigger: Trigger, event: TenantEvent) -> NewRun:
        settings, scope = self._settings, {"event": event.to_scope()}
        budget = RenderBudget(settings.max_input_bytes, "RUNLANE_MAX_INPUT_BYTES")
        values: dict[str, Any] = render_value(trigger.input, scope, budget)
        key = None if trigger.ordering_key is None else render(trigger.ordering_key, scope, budget)
        options = RunOptions(priority=trigger.priority, ordering_key=key or None, flow_control=trigger.flow_control)
        if trigger.task is not None:
            task = self._tasks.get(trigger.task)
            if task is None:
                # Another worker may have the task.
                raise _Later(str(UnknownTask(trigger.task, self._tasks)), _WITHOUT_TASK_SECONDS)
            request = TaskRequest(trigger.task, values, options)
            run = task_run(task, request, settings.max_input_bytes, settings.max_losses, tenant=event.tenant)
        else:
            start = StartRequest(
                trigger.orchestration_id or trigger.agent_id or "",
                render(trigger.message, scope, budget),
                values,
                options,
                kind="orchestration" if trigger.orchestration_id is not None else "agent",
            )
            run = await orchestration_run(
                self._connection.database,
                start,
                tasks=(),
                max_input_bytes=settings.max_input_bytes,
                max_losses=settings.max_losses,
                tenant=event.tenant,
            )
        origin = {"trigger": trigger.id, "event": event.id, "depth": event.depth + 1}
        return run._replace(origin=dump_json(origin))


def trigger_services(
    settings: Settings, connection: Resources, tasks: Mapping[str, Task]
) -> dict[MaintenanceService, PeriodicService]:
    """Return the maintenance services of triggers, which only processes with a worker have."""
    return {MaintenanceService.TRIGGERS: TriggerEvaluator(settings, connection, tasks)}


def _failed(error: Exception) -> Decision:
    return Decision(Outcome.FAILED, str(error)[:_MAX_REASON])
