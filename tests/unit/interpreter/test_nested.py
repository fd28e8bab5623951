"""Orchestrations as steps, and agents that are orchestrations."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.interpreter.machine import OrchestrationBudget
from runlane.interpreter.nested import MAX_NESTED
from runlane.interpreter.values import EndStatus
from tests.unit.interpreter.play import Play, if_else, nested, orchestration, parallel, say

INNER = orchestration(say("one", "two"), say("two"), id="inner", state_schema={"tone": {"default": "dry"}})


def test_it_has_a_state_of_its_own_and_its_response_is_the_output() -> None:
    main = orchestration(say("a", "sub"), nested("sub", "inner", "after", output_key="answer"), say("after"))
    play = Play(main, INNER, state={"user_input": "hello", "user_query": "hello", "secret": 1})
    play.do("a")
    pending = play.pending("sub/>one")
    assert pending.orchestration.id == "inner"
    assert dict(pending.state) == {"tone": "dry", "user_input": "hello", "user_query": "hello"}
    play.do("sub/>one", 1)
    play.do("sub/>two", 2)
    assert play.open == ["after"]
    assert play.state["answer"] == 2
    assert "one" not in play.state


def test_its_begin_and_its_end_emit_events_like_those_of_any_step() -> None:
    play = Play(orchestration(nested("sub", "inner", "after", name="Inner"), say("after")), INNER)
    fields = {"orch_step_id": "sub", "step_name": "Inner", "step_type": "orchestration", "path": "sub"}
    assert play.emitted("step_start") == [fields]
    play.do("sub/>one", 1)
    assert play.emitted("step_complete") == []
    play.do("sub/>two", 2)
    assert play.emitted("step_complete") == [fields]


def test_its_message_and_input_are_filled_from_the_state() -> None:
    step = nested(
        "sub",
        "inner",
        message="About {state.topic}: {{user_input}}",
        input={"tone": "{state.style.tone}", "all": ["{{topic}}", {"style": "{state.style}"}], "n": 3},
        input_keys=["topic", "absent"],
    )
    play = Play(orchestration(step), INNER, state={"user_input": "hi", "topic": "bees", "style": {"tone": "warm"}})
    assert dict(play.pending("sub/>one").state) == {
        "tone": "warm",
        "user_input": "About bees: hi",
        "user_query": "About bees: hi",
        "topic": "bees",
        "all": ["bees", {"style": {"tone": "warm"}}],
        "n": 3,
    }


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"message": "{state.missing}"}, "unknown_placeholder"),
        ({"input": {"a": "{state.missing}"}}, "unknown_placeholder"),
        ({"message": "{state.a b}"}, "invalid_placeholder"),
        ({"orchestration_id": "gone"}, "unknown_orchestration"),
        ({"input": {"tone": 3}}, "wrong_type"),
        ({"input": {"big": "x" * 5000}}, "state_too_large"),
    ],
)
def test_what_cannot_be_started_fails_the_step(fields: dict[str, Any], code: str) -> None:
    schema = {"tone": {"type": "string"}}
    inner = orchestration(say("one"), id="inner", state_schema=schema, max_state_bytes=2000)
    main = orchestration({**nested("sub", "inner", on_error="rescue"), **fields}, say("rescue"))
    play = Play(main, inner)
    assert play.open == ["rescue"]
    assert play.state["error"]["step_id"] == "sub"
    assert play.state["error"]["code"] == code
    assert [fact["code"] for fact in play.emitted("step_error")] == [code]


def test_an_agent_that_is_an_orchestration_is_run_like_one() -> None:
    step = {"id": "ask", "type": "agent", "agent_id": "boss", "prompt_template": "Do {state.x}", "output_key": "out"}
    play = Play(orchestration(step), INNER, state={"x": "this"}, agents={"boss": "inner"})
    assert play.pending("ask/>one").state["user_input"] == "Do this"
    play.do_all("ask/>one", "ask/>two")
    assert play.completed()["out"] == "<ask/>two>"


def test_other_agents_are_performed() -> None:
    step = {"id": "ask", "type": "agent", "agent_id": "writer"}
    assert Play(orchestration(step), INNER, agents={"boss": "inner"}).open == ["ask"]


def test_an_end_step_inside_ends_the_inner_one_only() -> None:
    inner = orchestration(say("one", "stop"), {"id": "stop", "type": "end"}, id="inner")
    play = Play(orchestration(nested("sub", "inner", "after"), say("after")), inner)
    play.do("sub/>one")
    assert play.open == ["after"]
    assert play.emitted("orchestration_end") == [{"orch_step_id": "stop", "path": "sub/>stop"}]


def test_a_failure_inside_is_one_of_the_step_outside() -> None:
    play = Play(orchestration(nested("sub", "inner", on_error="rescue"), say("rescue")), INNER)
    play.fail("sub/>one", "timeout")
    assert play.open == ["rescue"]
    assert play.state["error"] == {"step_id": "sub", "code": "timeout", "message": "It broke."}
    assert [fact["path"] for fact in play.emitted("step_error")] == ["sub/>one", "sub"]


def test_an_unhandled_failure_inside_fails_the_run() -> None:
    play = Play(orchestration(nested("sub", "inner")), INNER)
    play.fail("sub/>one", "timeout")
    assert play.error().code == "timeout"
    assert play.end.step_id == "sub"


def test_an_error_taken_inside_is_not_seen_outside() -> None:
    inner = orchestration(say("one", on_error="two"), say("two"), id="inner")
    play = Play(orchestration(nested("sub", "inner", output_key="out")), inner)
    play.fail("sub/>one")
    assert play.pending("sub/>two").state["error"]["step_id"] == "one"
    play.do("sub/>two", "fine")
    assert play.completed() == {"out": "fine"}


def test_inner_turns_and_costs_count_outside() -> None:
    play = Play(orchestration(nested("sub", "inner", "after"), say("after")), INNER)
    play.do("sub/>one", cost_usd=0.25, tokens=5)
    play.do("sub/>two", cost_usd=0.5, tokens=6)
    assert (play.machine.turns, play.machine.cost_usd, play.machine.tokens) == (2, 0.75, 11)


def test_the_inner_guards_fail_the_step_that_runs_it() -> None:
    inner = orchestration(say("one", "two"), say("two"), id="inner", max_total_turns=1)
    play = Play(orchestration(nested("sub", "inner", on_error="rescue"), say("rescue")), inner)
    play.do("sub/>one")
    assert play.open == ["rescue"]
    assert play.state["error"]["code"] == "turn_limit"
    assert [(fact["path"], fact["code"]) for fact in play.emitted("step_error")] == [("sub", "turn_limit")]


def test_the_inner_budget_fails_the_step_that_runs_it() -> None:
    inner = orchestration(say("one", "two"), say("two"), id="inner", max_total_cost_usd=0.1)
    play = Play(orchestration(nested("sub", "inner", on_error="rescue"), say("rescue")), inner)
    assert play.machine.budgets("sub/>one") == [OrchestrationBudget("inner", 0.1, 0.0, "fail")]
    play.do("sub/>one", cost_usd=0.2)
    assert play.open == ["rescue"]
    assert play.state["error"]["code"] == "cost_limit"
    assert not play.machine.over_budget
    assert play.machine.budgets("rescue") == []


def test_the_outer_guards_count_what_happens_inside() -> None:
    main = orchestration(nested("sub", "inner", "after", on_error="after"), say("after"), max_total_turns=1)
    play = Play(main, INNER)
    play.do("sub/>one")
    assert play.error().code == "turn_limit"


def test_a_rescue_from_an_inner_guard_may_be_one_turn_too_many() -> None:
    inner = orchestration(say("one", "two"), say("two"), id="inner", max_total_cost_usd=0.1)
    main = orchestration(nested("sub", "inner", on_error="rescue"), say("rescue"), max_total_cost_usd=0.1)
    play = Play(main, inner)
    play.do("sub/>one", cost_usd=0.2)
    assert play.error().code == "cost_limit"


def test_what_an_inner_state_holds_counts_until_it_ends() -> None:
    main = orchestration(say("a", "sub"), nested("sub", "inner", "b"), say("b", "c"), say("c"), max_state_bytes=1500)
    play = Play(main, INNER)
    play.do("a", "x" * 500)
    play.do("sub/>one", "x" * 500)
    play.do("sub/>two", "x" * 50)
    play.do("b", "x" * 500)
    assert play.open == ["c"]


def test_an_inner_state_may_be_too_large_for_the_outer_one() -> None:
    play = Play(orchestration(nested("sub", "inner"), max_state_bytes=1024), INNER)
    play.do("sub/>one", "x" * 2000)
    assert play.error().code == "state_too_large"


def test_an_orchestration_that_runs_itself_ends() -> None:
    play = Play(orchestration(say("a", "sub"), nested("sub", "main")))
    end = play.finish()
    assert end.error is not None
    assert end.error.code == "nesting_limit"
    assert len(play.paths) == MAX_NESTED + 1
    assert play.paths[2] == "sub/>sub/>a"


def test_an_orchestration_that_runs_itself_many_times_ends() -> None:
    play = Play(orchestration(parallel("fan", [["sub"]] * 30), nested("sub", "main")))
    assert play.end.status is EndStatus.FAILED


def test_recursion_that_ends_by_itself_is_fine() -> None:
    main = orchestration(if_else("more", yes="sub", no="leaf"), nested("sub", "main"), say("leaf"))
    play = Play(main)
    play.do("more", True)
    play.do("sub/>more", True)
    play.do("sub/>sub/>more", False)
    play.do("sub/>sub/>leaf", "deep")
    assert play.end.response == "deep"
