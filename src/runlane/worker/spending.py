"""What a run spends: every cap is looked at before each call of a model, with what open steps have spent so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from runlane.agents.journal import Journal
from runlane.interpreter.machine import Machine
from runlane.interpreter.values import Outcome, Todo
from runlane.model.definition import Agent
from runlane.steps.failure import StepFailed
from runlane.store.claim import Claimed
from runlane.store.database import Database
from runlane.store.steps import StepOutcome, StepRecord

# A float's worth of rounding: less than anybody is charged.
_NOTHING: Final = 1e-9


class Spending:
    """The money of one attempt at a run."""

    def __init__(self, claimed: Claimed, database: Database) -> None:
        self._claimed = claimed
        self._database = database
        # What earlier tries of a step have cost, which the step machine knows already.
        self._settled: dict[str, tuple[float, int]] = {}

    def learn(self, way: Sequence[StepRecord]) -> None:
        """Take over what earlier attempts have settled of steps that are tried again."""
        for record in way:
            if record.outcome in (StepOutcome.RETRYING, StepOutcome.FAILED):
                self._settled[record.path] = (record.cost_usd or 0.0, record.tokens)

    def settle(self, path: str, outcome: Outcome) -> Outcome:
        """The outcome with what this try has cost, given what all tries have."""
        cost, tokens = self._settled.get(path, (0.0, 0))
        self._settled[path] = (max(cost, outcome.cost_usd or 0.0), max(tokens, outcome.tokens))
        fresh = None if outcome.cost_usd is None else max(0.0, outcome.cost_usd - cost)
        return replace(outcome, cost_usd=fresh, tokens=max(0, outcome.tokens - tokens))

    async def check(
        self, machine: Machine, journals: Mapping[str, Journal], todo: Todo, agent: Agent | None, step_cap: float | None
    ) -> None:
        """Raise if no model may be asked any more."""
        unsettled = {path: self._unsettled(path, journal) for path, journal in journals.items()}
        left = machine.budget_left_usd(todo.path, unsettled)
        if left is not None and left <= _NOTHING:
            raise StepFailed("cost_limit", "The run has spent its max_total_cost_usd. Raise it to go on.")
        spent = journals[todo.path].cost_usd or 0.0
        if step_cap is not None and spent >= step_cap:
            raise StepFailed("cost_limit", f"The step has spent its max_cost_usd ({spent:g} of {step_cap:g} USD).")

    def _unsettled(self, path: str, journal: Journal) -> float:
        return (journal.cost_usd or 0.0) - self._settled.get(path, (0.0, 0))[0]
