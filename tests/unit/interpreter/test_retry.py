"""Failures: retried, handled by on_error, or the end of the run."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.interpreter.values import Done, EndStatus, Failed
from tests.unit.interpreter.play import Play, loop, nested, orchestration, parallel, say

INNER = orchestration(say("one"), id="inner")


def retrying(**retry: Any) -> Play:
    return Play(orchestration(say("a", "b", retry=retry), say("b")))


def test_a_step_without_retry_fails_at_once() -> None:
    play = Play(orchestration(say("a", "b"), say("b")))
    facts = play.fail("a", "timeout", retryable=True)
    assert [fact.type for fact in facts] == ["step_error"]
    assert play.error().code == "timeout"
    assert play.error().retryable
    assert play.end.step_id == "a"
    assert play.end.response is None
    assert play.emitted("step_error") == [{"orch_step_id": "a", "code": "timeout", "error": "It broke.", "path": "a"}]


def test_the_same_step_is_pending_again_with_a_growing_delay() -> None:
    play = retrying(attempts=5, backoff_seconds=2, max_backoff_seconds=7)
    waits: list[float] = []
    for tries in range(1, 5):
        play.fail("a", retryable=True)
        (pending,) = play.machine.pending_steps()
        assert (pending.path, pending.tries) == ("a", tries)
        waits.append(pending.delay_seconds)
    assert waits == [2, 4, 7, 7]
    play.fail("a", retryable=True)
    assert play.end.status is EndStatus.FAILED


def test_a_try_emits_an_event_and_an_error_only_at_the_end() -> None:
    play = retrying(attempts=2, backoff_seconds=3)
    play.fail("a", retryable=True)
    assert play.emitted("step_retry") == [
        {"orch_step_id": "a", "tries": 1, "delay_seconds": 3.0, "error": "It broke.", "path": "a"}
    ]
    assert play.emitted("step_error") == []
    play.fail("a", retryable=True)
    assert len(play.emitted("step_retry")) == len(play.emitted("step_error")) == 1


def test_the_cost_of_a_failed_try_is_in_its_event() -> None:
    play = retrying(attempts=2)
    error = Failed("model_error", "It broke.", retryable=True, cost_usd=0.5, tokens=7)
    play.machine.complete("a", error)
    (event,) = [fact for fact in play.machine.complete("a", error) if fact.type == "step_error"]
    assert (event.data["cost_usd"], event.data["tokens"]) == (0.5, 7)
    assert play.machine.cost_usd == 1.0


def test_a_successful_try_ends_the_retries() -> None:
    play = retrying(attempts=2)
    play.fail("a", retryable=True)
    play.do("a", "fine")
    assert play.open == ["b"]
    assert play.state == {"a": "fine"}
    assert play.machine.turns == 1


@pytest.mark.parametrize(
    ("on", "code", "retryable", "again"),
    [
        ([], "timeout", True, True),
        ([], "timeout", False, False),
        (["timeout"], "timeout", True, True),
        (["timeout"], "timeout", False, True),
        (["no_json", "bad_answer"], "no_json", False, True),
        (["no_json"], "bad_answer", False, False),
        (["timeout"], "model_error", True, False),
    ],
)
def test_which_errors_are_tried_again(on: list[str], code: str, retryable: bool, again: bool) -> None:
    play = retrying(on=on)
    play.fail("a", code, retryable=retryable)
    assert (play.machine.end is None) is again


def test_one_attempt_means_no_retry() -> None:
    play = retrying(attempts=1)
    play.fail("a", retryable=True)
    assert play.end.status is EndStatus.FAILED


def test_waits_have_no_upper_end_but_the_cap() -> None:
    play = retrying(attempts=100, backoff_seconds=3600, max_backoff_seconds=3600)
    for _ in range(99):
        play.fail("a", retryable=True)
    assert play.machine.pending_steps()[0].delay_seconds == 3600


def test_on_error_continues_with_the_error_in_the_state() -> None:
    play = Play(orchestration(say("a", "b", on_error="rescue"), say("b"), say("rescue", "b")))
    play.fail("a", "timeout")
    assert play.open == ["rescue"]
    assert play.state == {"error": {"step_id": "a", "code": "timeout", "message": "It broke."}}
    assert len(play.emitted("step_error")) == 1


def test_on_error_comes_after_the_last_try() -> None:
    play = Play(orchestration(say("a", retry={"attempts": 2}, on_error="b"), say("b")))
    play.fail("a", retryable=True)
    assert play.open == ["a"]
    play.fail("a", retryable=True)
    assert play.open == ["b"]


def test_a_new_visit_starts_with_new_tries() -> None:
    step = say("a", retry={"attempts": 2}, on_error="b")
    play = Play(orchestration(step, say("b", "a")))
    play.fail("a", retryable=True)
    play.fail("a", retryable=True)
    play.do("b")
    assert play.pending("a~2").tries == 0


@pytest.mark.parametrize("schema", [{"error": {"type": "string"}}, {}])
def test_an_error_that_cannot_be_written_is_the_end(schema: dict[str, Any]) -> None:
    definition = orchestration(
        say("a", on_error="b"), say("b"), state_schema=schema, max_state_bytes=1024 if not schema else 4096
    )
    play = Play(definition, state={} if schema else {"x": "x" * 980})
    play.fail("a")
    assert play.error().code == ("wrong_type" if schema else "state_too_large")


# What contains steps.


def test_a_nested_orchestration_is_tried_again_as_a_whole() -> None:
    retry = {"attempts": 3, "backoff_seconds": 2}
    inner = orchestration(say("one", "two"), say("two"), id="inner")
    play = Play(orchestration(nested("sub", "inner", retry=retry, output_key="out")), inner)
    play.do("sub/>one", "thrown away")
    play.fail("sub/>two", "timeout", retryable=True)
    (pending,) = play.machine.pending_steps()
    assert (pending.path, pending.tries, pending.delay_seconds) == ("sub~2/>one", 0, 2.0)
    assert "one" not in pending.state
    assert play.emitted("step_retry") == [
        {"orch_step_id": "sub", "tries": 1, "delay_seconds": 2.0, "error": "It broke.", "path": "sub"}
    ]
    play.do("sub~2/>one")
    assert play.pending("sub~2/>two").delay_seconds == 0
    play.fail("sub~2/>two", "timeout", retryable=True)
    assert play.pending("sub~3/>one").delay_seconds == 4
    play.do("sub~3/>one")
    play.fail("sub~3/>two", "timeout", retryable=True)
    assert play.error().code == "timeout"


def test_branches_are_tried_again_all_together() -> None:
    fan = parallel("fan", [["a"], ["b"], ["c"]], "join", retry={"attempts": 2}, max_concurrency=2)
    play = Play(orchestration(fan, say("a"), say("b"), say("c"), say("join")))
    play.do("fan/0/a", "thrown away")
    play.fail("fan/1/b", retryable=True)
    assert [(pending.path, pending.delay_seconds) for pending in play.machine.pending_steps()] == [
        ("fan~2/0/a", 1),
        ("fan~2/1/b", 1),
    ]
    play.do("fan~2/0/a")
    assert play.pending("fan~2/2/c").delay_seconds == 0
    play.do_all("fan~2/1/b", "fan~2/2/c")
    assert play.open == ["join"]


@pytest.mark.parametrize("kind", [{"loop_count": 2}, {"while_condition": "x"}, {"for_each": "x"}])
def test_a_loop_is_tried_again_from_its_beginning(kind: dict[str, Any]) -> None:
    step = loop("rounds", ["a"], retry={"attempts": 2, "backoff_seconds": 5}, **kind)
    play = Play(orchestration(step, say("a")))
    first = play.machine.pending_steps()[0]
    if first.part != "step":
        play.do(first.path, ["x"])
    play.fail("rounds/1/a", retryable=True)
    (pending,) = play.machine.pending_steps()
    assert pending.path.startswith("rounds~2")
    assert pending.delay_seconds == 5


def test_an_evaluation_of_a_loop_is_retried_by_itself_and_not_with_the_loop() -> None:
    step = loop("rounds", ["a"], while_condition="x", retry={"attempts": 2, "backoff_seconds": 5})
    play = Play(orchestration(step, say("a")))
    play.do("rounds/1?", True)
    play.do("rounds/1/a")
    play.fail("rounds/2?", retryable=True)
    (pending,) = play.machine.pending_steps()
    assert (pending.path, pending.tries, pending.delay_seconds) == ("rounds/2?", 1, 5)
    play.fail("rounds/2?", retryable=True)
    assert play.end.status is EndStatus.FAILED
    assert len(play.emitted("step_retry")) == 1


def test_tries_inside_come_before_tries_outside() -> None:
    inner = orchestration(say("one", retry={"attempts": 2}), id="inner")
    play = Play(orchestration(nested("sub", "inner", retry={"attempts": 2})), inner)
    paths: list[str] = []
    while play.machine.end is None:
        (pending,) = play.machine.pending_steps()
        paths.append(pending.path)
        play.fail(pending.path, retryable=True)
    assert paths == ["sub/>one", "sub/>one", "sub~2/>one", "sub~2/>one"]


def test_a_retry_is_not_a_way_back() -> None:
    fan = parallel("fan", [["a"]], retry={"attempts": 10}, max_iterations=1)
    play = Play(orchestration(fan, say("a")))
    for _ in range(9):
        play.fail(play.open[0], retryable=True)
    assert play.emitted("loop_limit_reached") == []
    play.settle(play.open[0], Done("x"))
    assert play.end.status is EndStatus.COMPLETED
