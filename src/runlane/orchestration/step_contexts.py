"""Create the StepContext of each step of an attempt: its journal, events, budget and the outputs of earlier steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from runlane.agents.journal import Journal
from runlane.definitions.schema.definition import Agent
from runlane.interpreter.machine import Machine
from runlane.interpreter.values import PendingStep
from runlane.orchestration.budget import SpendingTracker
from runlane.orchestration.history import History
from runlane.orchestration.outbox import Outbox
from runlane.steps.dispatch import RunServices, StepContext
from runlane.steps.memory_budget import StepMemory
from runlane.store.orchestration.calls import CallRecord
from runlane.store.queue.claim import Claimed
from runlane.store.sql.database import Database
from runlane.worker.open_answers import StepAnswers
from runlane.worker.run_host import RunHost

_CALLS_MODELS = frozenset({"llm", "agent", "tool", "evaluator"})


class StepContexts:
    """Creates contexts. `spending` and `history` are those of the attempt."""

    def __init__(
        self, claimed: Claimed, host: RunHost, database: Database, services: RunServices, outbox: Outbox
    ) -> None:
        self._claimed = claimed
        self._host = host
        self._services = services
        self._outbox = outbox
        self._calls: dict[str, list[CallRecord]] = {}
        self._journals: dict[str, Journal] = {}
        self.spending = SpendingTracker(claimed, database, self.journal, outbox.report_budget)
        self.history = History()

    def restore(self, calls: Iterable[CallRecord]) -> None:
        """Load the calls that earlier attempts have stored.

        Every journal is restored before the first step continues, because the budget counts the cost of all of them.
        """
        for call in calls:
            self._calls.setdefault(call.path, []).append(call)
        for path in list(self._calls):
            self.journal(path)

    def journal(self, path: str) -> Journal:
        """Return the journal of a step or, for the path "", of the run."""
        journal = self._journals.get(path)
        if journal is None:
            stored = self._calls.pop(path, [])
            journal = Journal(self._claimed.run_id, path, self._outbox.keep_call, stored)
            self._journals[path] = journal
        return journal

    def forget(self, path: str) -> None:
        """Drop the journal of a step that is over, unless a call of it is in flight."""
        if path in self._journals and not self._services.inflight.of(path):
            del self._journals[path]

    def context(self, pending: PendingStep, machine: Machine, memory: StepMemory) -> StepContext[Any]:
        claimed, host = self._claimed, self._host
        about = {"orch_step_id": pending.step.id, "step_name": pending.step.title, "path": pending.path}

        async def emit_event(kind: str, data: Mapping[str, Any]) -> None:
            note_event(kind, data)
            self._outbox.store_soon()

        def note_event(kind: str, data: Mapping[str, Any]) -> None:
            self._outbox.add_event(kind, **{**about, **data})
            if kind == "model_response":
                host.open_answers.close(claimed.run_id, pending.path)

        async def check_budget(agent: Agent | None, step_cap: float | None) -> None:
            await self.spending.check(machine, self._journals, pending, agent, step_cap)

        return StepContext(
            pending=pending,
            services=self._services,
            journal=self.journal(pending.path) if pending.step.type in _CALLS_MODELS else Journal(),
            history=self.history.before(pending.path),
            emit_event=emit_event,
            note_event=note_event,
            delta=StepAnswers(
                host.open_answers, claimed.run_id, claimed.attempt, pending.step.id, pending.path, host.send_delta
            ),
            check_budget=check_budget,
            unpriced_warning=partial(self.spending.unpriced_warning, pending.path),
            memory=memory,
        )
