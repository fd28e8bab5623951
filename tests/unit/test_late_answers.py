"""What an attempt restores when it continues a run: answers that came in time, and costs that were paid before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from runlane.interpreter.machine import Machine
from runlane.interpreter.values import Done
from runlane.orchestration.budget import SpendingTracker
from runlane.orchestration.waits import OpenWaits
from runlane.store.orchestration.steps import StepOutcome, StepRecord
from runlane.store.orchestration.waits import Wait
from tests.unit.interpreter.play import orchestration, parallel, say


def wait(*, answered: bool) -> Wait:
    """A question whose time is over when it is read, answered before that or never."""
    return Wait(
        run_id="run_1",
        path="a",
        tenant="default",
        target="orchestration:main",
        kind="human",
        step_id="a",
        name="Ok?",
        request={},
        opened_at_us=1,
        due_at_us=10,
        due_in_us=-5_000_000,
        answer={"ok": True} if answered else None,
        answered_at_us=9 if answered else None,
        answered_by="ada" if answered else None,
    )


@pytest.mark.parametrize(("answered", "outcome"), [(True, Done({"ok": True})), (False, Done(None, route="expired"))])
def test_an_answer_in_time_counts_even_if_it_is_read_late(answered: bool, outcome: Done) -> None:
    machine = Machine.start({"main": orchestration(say("a"))}, "main", {})
    waits = OpenWaits()
    stored = [wait(answered=answered)]
    waits.learn(stored, machine.pending_steps())
    assert waits.unconfirmed is not answered
    if not answered:
        # The deadline alone decides nothing: an answer may be stored that this process has not loaded.
        assert list(waits.answered()) == []
        waits.confirm_expired(stored)
    assert not waits.unconfirmed
    ((_, _, found, over),) = waits.answered()
    assert (found, over) == (outcome, ["a"])


def test_the_deadline_of_a_question_is_that_of_the_database() -> None:
    machine = Machine.start({"main": orchestration(say("a"))}, "main", {})
    waits = OpenWaits()
    waits.learn([wait(answered=False)], machine.pending_steps())
    waits.confirm_expired([replace(wait(answered=False), due_in_us=3_600_000_000)])
    assert list(waits.answered()) == []
    left = waits.seconds_left()
    assert left is not None
    assert 3000 < left <= 3600


def test_a_wait_for_a_time_does_not_expire() -> None:
    machine = Machine.start({"main": orchestration(say("a"))}, "main", {})
    waits = OpenWaits()
    waits.learn([replace(wait(answered=False), kind="time")], machine.pending_steps())
    ((_, _, found, _),) = waits.answered()
    assert found == Done(None)


def test_an_early_event_answers_one_step() -> None:
    fan = orchestration(parallel("fan", [["a"], ["b"]]), say("a"), say("b"), entry_step_id="fan")
    machine = Machine.start({"main": fan}, "main", {})
    paths = [pending.path for pending in machine.pending_steps()]
    open_waits = [
        replace(wait(answered=False), path=path, kind="event", name="paid", due_at_us=None, due_in_us=None)
        for path in paths
    ]
    sent = replace(wait(answered=True), path=".sent/1", kind="sent", name="paid", due_at_us=None, due_in_us=None)
    waits = OpenWaits()
    waits.learn([*open_waits, sent], machine.pending_steps())
    assert [(found, over) for _, _, found, over in waits.answered()] == [(Done({"ok": True}), [paths[0], ".sent/1"])]
    assert waits.paths == [paths[1]]


@pytest.mark.parametrize("outcome", [StepOutcome.RETRYING, StepOutcome.FAILED])
def test_a_step_that_is_tried_again_counts_what_it_cost_before_once(outcome: StepOutcome) -> None:
    # Neither a database nor journals are needed to complete a step.
    nothing = cast("Any", None)
    tracker = SpendingTracker(nothing, nothing, nothing, nothing)
    tracker.learn([StepRecord("a", 1, "a", "agent", outcome, error="{}", tries=1, cost_usd=1.5, tokens=15)])
    # The journal of the step names all that it has cost, in every attempt.
    second = tracker.complete("a", Done("x", None, 2.0, 20))
    assert (second.cost_usd, second.tokens) == (0.5, 5)
    third = tracker.complete("a", Done("x", None, 2.25, 22))
    assert (third.cost_usd, third.tokens) == (0.25, 2)
