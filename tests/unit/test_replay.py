"""The position of a run after replay: what was paid stays paid."""

from __future__ import annotations

import pytest

from runlane.definitions.schema.definition import Orchestration
from runlane.interpreter.machine import Machine, OrchestrationBudget
from runlane.interpreter.values import Failed, Outcome
from runlane.orchestration.replay import record_of, replay
from runlane.store.orchestration.steps import StepOutcome, StepRecord
from tests.unit.interpreter.play import loop, nested, orchestration, parallel, say

DEFINITION = orchestration(say("a", "b", retry={"attempts": 5}, on_error="b"), say("b"), max_total_cost_usd=10)


@pytest.mark.parametrize("outcome", [StepOutcome.RETRYING, StepOutcome.FAILED, StepOutcome.HANDLED, StepOutcome.DONE])
def test_the_cost_of_every_try_counts_after_a_takeover(outcome: StepOutcome) -> None:
    error = None if outcome is StepOutcome.DONE else '{"code":"timeout","message":"Late."}'
    record = StepRecord("a", 3, "a", "llm", outcome, error=error, tries=3, cost_usd=1.5, tokens=7)
    machine, _ = replay({"main": DEFINITION}, "main", {}, {}, [record], [])
    assert (machine.cost_usd, machine.tokens) == (1.5, 7)
    open_path = "a" if outcome in (StepOutcome.RETRYING, StepOutcome.FAILED) else "b"
    assert [pending.path for pending in machine.pending_steps()] == [open_path]
    assert machine.budgets(open_path) == [OrchestrationBudget("main", 10.0, 1.5, "fail")]


class Recorded:
    """A machine whose settled steps are recorded as a worker records them: the last one of each path."""

    def __init__(self, *orchestrations: Orchestration) -> None:
        self.library = {each.id: each for each in orchestrations}
        self.machine = Machine.start(self.library, "main", {})
        self.records: dict[str, StepRecord] = {}
        self.no = 0

    def settle(self, path: str, outcome: Outcome) -> None:
        (pending,) = [pending for pending in self.machine.pending_steps() if pending.path == path]
        self.machine.complete(path, outcome)
        self.no += 1
        self.records[path] = record_of(pending, outcome, self.machine, self.no, 0.0)

    def taken_over(self) -> Machine:
        way = sorted(self.records.values(), key=lambda record: record.no or 0)
        return replay(self.library, "main", {}, {}, way, [])[0]


STEP = {"attempts": 3, "on": ["no_json", "timeout"], "backoff_seconds": 0}
AROUND = {"attempts": 2, "backoff_seconds": 0}
NAMED = {"attempts": 2, "on": ["no_json"], "backoff_seconds": 0}
INNER = orchestration(say("a"), id="inner")
WAYS: dict[str, tuple[list[Orchestration], list[tuple[str, str, bool]]]] = {
    "a named code that would not pass": (
        [orchestration(say("a", retry=STEP, on_error="b"), say("b"))],
        [("a", "no_json", False)],
    ),
    "all tries of a named code": (
        [orchestration(say("a", retry=STEP, on_error="b"), say("b"))],
        [("a", "no_json", False)] * 3,
    ),
    "one that is named, then one that is not": (
        [orchestration(say("a", retry=STEP, on_error="b"), say("b"))],
        [("a", "timeout", True), ("a", "model_error", True)],
    ),
    "a failure that may pass, in a branch that is tried again": (
        [orchestration(parallel("fan", [["a"]], retry=AROUND, on_error="b"), say("a"), say("b"))],
        [("fan/0/a", "timeout", True)],
    ),
    "a failure that does not pass, in a branch that is tried again": (
        [orchestration(parallel("fan", [["a"]], retry=AROUND, on_error="b"), say("a"), say("b"))],
        [("fan/0/a", "timeout", False)],
    ),
    "a named failure in a loop that is tried again": (
        [orchestration(loop("rounds", ["a"], loop_count=2, retry=NAMED, on_error="b"), say("a"), say("b"))],
        [("rounds/1/a", "no_json", False), ("rounds~2/1/a", "no_json", False)],
    ),
    "a failure in an orchestration that is tried again": (
        [orchestration(nested("sub", "inner", retry=AROUND, on_error="b"), say("b")), INNER],
        [("sub/>a", "timeout", True)],
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_takeover_between_tries_stands_where_the_worker_stood(name: str) -> None:
    orchestrations, failures = WAYS[name]
    played = Recorded(*orchestrations)
    for path, code, retryable in failures:
        played.settle(path, Failed(code, "It broke.", retryable))
        again = played.taken_over()
        assert [(pending.path, pending.tries) for pending in again.pending_steps()] == [
            (pending.path, pending.tries) for pending in played.machine.pending_steps()
        ]
        assert dict(again.state) == dict(played.machine.state)
