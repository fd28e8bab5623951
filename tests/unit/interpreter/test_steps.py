"""Every type of step: what it requests, where its output goes, where it leads, and which events it emits."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from runlane.definitions.schema.step import Step
from runlane.interpreter.values import Done, EndStatus
from tests.unit.interpreter.play import Play, StepData, if_else, orchestration, say

PERFORMED: dict[str, StepData] = {
    "llm": {},
    "agent": {"agent_id": "writer"},
    "tool": {"forced_tool": "search"},
    "evaluator": {"route_map": {"good": "after", "bad": None}},
    "merge": {"input_keys": ["a", "b"]},
    "human": {},
    "transform": {"transform_code": "result = 1"},
    "extract_json": {},
    "if_else": {"if_condition": "True", "if_true_step_id": "after"},
    "switch": {"switch_expression": "1", "switch_cases": {"1": "after"}},
    "print": {"print_content": "hello"},
    "task": {"task": "work"},
    "wait": {"seconds": 1},
}
INSIDE = {"parallel", "loop", "orchestration", "end"}
STEERING = {"evaluator", "if_else", "switch"}


def one(kind: str, **fields: Any) -> StepData:
    return {"id": "it", "type": kind, "next_step_id": "after", **PERFORMED[kind], **fields}


def test_these_are_all_types() -> None:
    union = get_args(get_args(Step)[0])
    assert {member.model_fields["type"].default for member in union} == PERFORMED.keys() | INSIDE


@pytest.mark.parametrize("kind", PERFORMED)
def test_it_is_requested_once_with_the_state_to_read(kind: str) -> None:
    play = Play(orchestration(one(kind), say("after")), state={"user_input": "hello"})
    (pending,) = play.machine.pending_steps()
    assert (pending.path, pending.part, pending.step.type, pending.tries, pending.delay_seconds) == (
        "it",
        "step",
        kind,
        0,
        0.0,
    )
    assert pending.orchestration.id == "main"
    assert dict(pending.state) == {"user_input": "hello"}
    with pytest.raises(TypeError):
        pending.state["user_input"] = "changed"  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize("kind", sorted(PERFORMED.keys() - STEERING))
def test_its_output_goes_to_its_key_and_control_to_the_next_step(kind: str) -> None:
    play = Play(orchestration(one(kind, output_key="out"), say("after")))
    play.do("it", {"a": [1]})
    assert play.state["out"] == {"a": [1]}
    assert play.open == ["after"]


@pytest.mark.parametrize("kind", sorted(PERFORMED.keys() - STEERING - {"human"}))
def test_without_a_key_nothing_is_written(kind: str) -> None:
    play = Play(orchestration(one(kind), say("after")))
    play.do("it", "x")
    assert play.state == {}


@pytest.mark.parametrize("kind", sorted(PERFORMED.keys() - STEERING - {"wait"}))
def test_the_last_output_is_the_response(kind: str) -> None:
    play = Play(orchestration(say("before", "it"), one(kind, next_step_id=None)))
    play.do("before", "first")
    play.do("it", "second")
    assert play.end.status is EndStatus.COMPLETED
    assert play.end.response == "second"
    assert play.end.error is None


@pytest.mark.parametrize(
    ("step", "output", "route"),
    [
        (one("evaluator"), None, "bad"),
        (one("if_else"), False, None),
        (one("switch"), "other", None),
        (one("wait", next_step_id=None), None, None),
    ],
)
def test_a_step_that_only_steers_leaves_the_response_as_it_is(step: StepData, output: Any, route: str | None) -> None:
    play = Play(orchestration(say("draft", "it"), step, say("after")))
    play.do("draft", "the text")
    play.do("it", output, route)
    assert play.end.response == "the text"


def test_an_evaluator_leads_where_its_label_points() -> None:
    step = one("evaluator", output_key="verdict", route_map={"good": None, "bad": "after"})
    play = Play(orchestration(step, say("after")))
    facts = play.do("it", "because", route="bad")
    assert play.state == {"verdict": "bad"}
    assert play.open == ["after"]
    assert [fact.type for fact in facts] == ["routing_decision"]
    assert play.emitted("routing_decision") == [
        {"orch_step_id": "it", "decision": "bad", "target_step_id": "after", "path": "it"}
    ]


@pytest.mark.parametrize("route", [None, "splendid", ""])
def test_an_evaluator_that_names_no_route_fails(route: str | None) -> None:
    play = Play(orchestration(one("evaluator"), say("after")))
    play.do("it", "good", route=route)
    assert play.error().code == "unknown_route"
    assert "good, bad" in play.error().message
    assert play.end.step_id == "it"
    assert play.emitted("routing_decision") == []


@pytest.mark.parametrize(("output", "result", "target"), [(True, True, "yes"), (False, False, "no"), ("", False, "no")])
def test_if_else_goes_one_of_two_ways(output: Any, result: bool, target: str) -> None:
    play = Play(orchestration(if_else("it", "yes", "no", output_key="held"), say("yes"), say("no")))
    play.do("it", output)
    assert play.open == [target]
    assert play.state == {"held": result}
    assert play.emitted("if_decision") == [
        {"orch_step_id": "it", "result": result, "target_step_id": target, "path": "it"}
    ]


def test_if_else_ignores_its_next_step() -> None:
    play = Play(orchestration(if_else("it", "yes", next_step_id="yes"), say("yes")))
    play.do("it", False)
    assert play.end.status is EndStatus.COMPLETED


@pytest.mark.parametrize(
    ("value", "case"),
    [
        ("text", "text"),
        ("true", "true"),
        (True, "true"),
        (False, "false"),
        (None, "null"),
        (3, "3"),
        (-0.5, "-0.5"),
        (3.0, "3.0"),
        (3.0, "3"),
        (1e300, str(int(1e300))),
        (2**80, str(2**80)),
        ([1, "a"], '[1,"a"]'),
        ({"a": None}, '{"a":null}'),
    ],
)
def test_a_switch_compares_as_text_spelled_like_json(value: Any, case: str) -> None:
    step = one("switch", switch_cases={case: "after"}, output_key="kept")
    play = Play(orchestration(step, say("after")))
    play.do("it", value)
    assert play.open == ["after"]
    assert play.state == {"kept": value}
    assert play.emitted("switch_decision") == [
        {"orch_step_id": "it", "value": value, "matched_case": case, "target_step_id": "after", "path": "it"}
    ]


@pytest.mark.parametrize(("value", "case"), [(True, "True"), (None, "None"), (3, "3.0"), ("3", "3.0"), (None, "")])
def test_a_switch_without_a_fitting_case_takes_the_default(value: Any, case: str) -> None:
    step = one("switch", switch_cases={case: None}, switch_default_step_id="after")
    play = Play(orchestration(step, say("after")))
    play.do("it", value)
    assert play.open == ["after"]
    assert play.emitted("switch_decision")[0]["matched_case"] is None


def test_a_switch_may_have_a_case_that_ends_the_run() -> None:
    step = one("switch", switch_cases={"stop": None}, switch_default_step_id="after")
    play = Play(orchestration(step, say("after")))
    play.do("it", "stop")
    assert play.end.status is EndStatus.COMPLETED


def test_a_merge_reports_how_many_values_became_one() -> None:
    play = Play(orchestration(one("merge", merge_strategy="concat", output_key="all"), say("after")))
    play.do("it", "a and b")
    assert play.emitted("merge_complete") == [
        {"orch_step_id": "it", "input_count": 2, "strategy": "concat", "path": "it"}
    ]


def test_an_answer_goes_to_its_key_and_to_human_response() -> None:
    play = Play(orchestration(one("human", output_key="approval"), say("after")))
    play.do("it", {"decision": "yes"})
    assert play.state == {"approval": {"decision": "yes"}, "human_response": {"decision": "yes"}}


def test_an_answer_without_a_key_goes_to_human_response() -> None:
    play = Play(orchestration(one("human"), say("after")))
    play.do("it", {"decision": "yes"})
    assert play.state == {"human_response": {"decision": "yes"}}


WAITING = [one("human", output_key="out"), one("wait", seconds=None, event="signal", output_key="out")]


@pytest.mark.parametrize("step", WAITING)
def test_an_expired_question_leads_to_on_expiry(step: StepData) -> None:
    play = Play(orchestration({**step, "on_expiry": "late"}, say("after"), say("late")))
    play.do("it", route="expired")
    assert play.open == ["late"]
    assert play.state == {}


@pytest.mark.parametrize("step", WAITING)
def test_an_expired_question_fails_without_on_expiry(step: StepData) -> None:
    play = Play(orchestration({**step, "on_error": "rescue"}, say("after"), say("rescue")))
    play.do("it", route="expired")
    assert play.open == ["rescue"]
    assert play.state["error"]["code"] == "expired"


def test_an_end_step_completes_the_run_and_leaves_its_response() -> None:
    play = Play(orchestration(say("a", "stop"), {"id": "stop", "type": "end", "next_step_id": "b"}, say("b")))
    play.do("a", "done")
    assert play.completed() == {"a": "done"}
    assert play.end.response == "done"
    assert play.emitted("orchestration_end") == [{"orch_step_id": "stop", "path": "stop"}]


def test_a_run_may_end_where_it_begins() -> None:
    play = Play(orchestration({"id": "stop", "type": "end"}))
    assert play.end.status is EndStatus.COMPLETED
    assert play.end.response is None
    assert play.emitted("orchestration_end") == [{"orch_step_id": "stop", "path": "stop"}]


def test_the_entry_may_be_named() -> None:
    assert Play(orchestration(say("a"), say("b"), entry_step_id="b")).open == ["b"]


def test_a_route_to_nowhere_fails_with_the_reason() -> None:
    play = Play(orchestration(say("a", "missing")))
    play.do("a")
    assert play.error().code == "unknown_step"
    assert '"missing"' in play.error().message
    assert play.end.step_id == "missing"
    assert [(fact["orch_step_id"], fact["code"]) for fact in play.emitted("step_error")] == [
        ("missing", "unknown_step")
    ]


def test_facts_of_a_step_are_returned_once() -> None:
    play = Play(orchestration(if_else("a", "b"), say("b", "c"), say("c")))
    assert len(play.do("a", True)) == 1
    assert play.do("b") == []


def test_outcomes_after_the_end_change_nothing_but_the_totals() -> None:
    play = Play(orchestration(say("a")))
    play.do("a", "x", cost_usd=0.25, tokens=3)
    end = play.end
    assert play.machine.complete("a", Done("y", cost_usd=0.5, tokens=4)) == []
    assert play.end is end
    assert (play.machine.cost_usd, play.machine.tokens, play.machine.turns) == (0.75, 7, 1)
