"""Where a run stands after its records: what was paid stays paid."""

from __future__ import annotations

import pytest

from runlane.store.steps import StepOutcome, StepRecord
from runlane.worker.way import go_again
from tests.unit.interpreter.play import orchestration, say

DEFINITION = orchestration(say("a", "b", retry={"attempts": 5}, on_error="b"), say("b"), max_total_cost_usd=10)


@pytest.mark.parametrize("outcome", [StepOutcome.RETRYING, StepOutcome.FAILED, StepOutcome.HANDLED, StepOutcome.DONE])
def test_the_cost_of_every_try_counts_after_a_takeover(outcome: StepOutcome) -> None:
    error = None if outcome is StepOutcome.DONE else '{"code":"timeout","message":"Late."}'
    record = StepRecord("a", 3, "a", "llm", outcome, error=error, tries=3, cost_usd=1.5, tokens=7)
    machine, _ = go_again({"main": DEFINITION}, "main", {}, {}, [record], [])
    assert (machine.cost_usd, machine.tokens) == (1.5, 7)
    open_path = "a" if outcome in (StepOutcome.RETRYING, StepOutcome.FAILED) else "b"
    assert [todo.path for todo in machine.todos()] == [open_path]
    assert machine.budget_left_usd(open_path) == 8.5
