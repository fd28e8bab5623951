"""Branches: what they see, where they meet, how many run at a time, and what one of them can do to the others."""

from __future__ import annotations

from itertools import permutations

import pytest

from runlane.interpreter.values import Done, EndStatus
from tests.unit.interpreter.play import Play, if_else, loop, orchestration, parallel, say


def fan_of_three(**fields: object) -> Play:
    return Play(
        orchestration(
            say("before", "fan"),
            parallel("fan", [["a"], ["b"], ["c"]], "join", **fields),
            say("a", "join", output_key="shared"),
            say("b", "join", output_key="shared"),
            say("c", "join"),
            say("join"),
        )
    )


def test_all_branches_may_be_performed_at_once() -> None:
    play = fan_of_three()
    play.do("before")
    assert play.open == ["fan/0/a", "fan/1/b", "fan/2/c"]


def test_branches_emit_their_events() -> None:
    play = fan_of_three()
    play.do_all("before", "fan/0/a", "fan/2/c")
    step = {"orch_step_id": "fan", "path": "fan"}
    assert play.emitted("parallel_start") == [{**step, "branch_count": 3}]
    assert play.emitted("branch_start") == [{**step, "branch_index": index, "branch_count": 3} for index in range(3)]
    assert play.emitted("parallel_complete") == []
    play.do("fan/1/b")
    assert play.emitted("parallel_complete") == [{**step, "branch_count": 3}]


def test_events_before_the_first_step_are_the_opening() -> None:
    play = Play(orchestration(parallel("fan", [["a"]]), say("a")))
    assert [fact.type for fact in play.machine.opening] == ["parallel_start", "branch_start"]


@pytest.mark.parametrize("order", list(permutations(["fan/0/a", "fan/1/b", "fan/2/c"])))
def test_the_later_branch_wins_a_key_whichever_was_faster(order: tuple[str, ...]) -> None:
    play = fan_of_three()
    play.do("before", "x")
    play.do_all(*order)
    assert play.open == ["join"]
    assert play.state == {"before": "x", "shared": "<fan/1/b>", "c": "<fan/2/c>"}
    assert list(play.state) == ["before", "shared", "c"]


def test_branches_do_not_see_each_other_and_the_outside_sees_none_before_the_join() -> None:
    play = Play(
        orchestration(
            parallel("fan", [["a"], ["b"]], "join"),
            say("a", "a2", output_key="x"),
            say("a2", "join"),
            say("b", "b2"),
            say("b2", "join"),
            say("join"),
        ),
        state={"x": 0},
    )
    play.do("fan/0/a", 1)
    play.do("fan/1/b", 2)
    assert dict(play.pending("fan/0/a2").state) == {"x": 1}
    assert dict(play.pending("fan/1/b2").state) == {"x": 0, "b": 2}
    assert play.state == {"x": 0}


def test_the_output_is_that_of_the_branches_in_their_order() -> None:
    play = fan_of_three(output_key="all", next_step_id=None)
    play.do("before")
    play.do_all("fan/2/c", "fan/1/b", "fan/0/a", "fan/0/join", "fan/1/join", "fan/2/join")
    assert play.end.response == ["<fan/0/join>", "<fan/1/join>", "<fan/2/join>"]
    assert play.completed()["all"] == play.end.response


def test_one_id_follows_its_steps_up_to_the_join() -> None:
    play = Play(
        orchestration(
            parallel("fan", [["a"]], "join"), say("a", "b"), if_else("b", yes="c", no="join"), say("c"), say("join")
        )
    )
    play.do("fan/0/a")
    play.do("fan/0/b", True)
    play.do("fan/0/c")
    assert play.open == ["join"]


def test_a_branch_may_reach_the_join_by_a_choice() -> None:
    play = Play(orchestration(parallel("fan", [["a"]], "join"), if_else("a", yes="join"), say("join")))
    play.do("fan/0/a", True)
    assert play.open == ["join"]


def test_several_ids_run_in_that_order_whatever_their_steps_define() -> None:
    play = Play(
        orchestration(
            parallel("fan", [["a", "b", "c"]], "join"), say("a", "join"), say("b", "a"), say("c", "b"), say("join")
        )
    )
    play.finish()
    assert play.paths == ["fan/0/a", "fan/0/b", "fan/0/c", "join"]


def test_a_choice_in_a_listed_branch_continues_from_where_it_leads() -> None:
    play = Play(
        orchestration(
            parallel("fan", [["a", "b", "c"]], "join"),
            if_else("a", yes="c", no="detour"),
            say("b"),
            say("c"),
            say("detour", "b"),
            say("join"),
        )
    )
    play.do("fan/0/a", False)
    play.do_all("fan/0/detour", "fan/0/b", "fan/0/c")
    assert play.open == ["join"]


def test_an_empty_branch_is_done_at_once() -> None:
    play = Play(orchestration(parallel("fan", [[], []], "join", output_key="none"), say("join")))
    assert play.open == ["join"]
    assert play.state == {"none": [None, None]}


def test_a_missing_next_step_ends_a_branch_not_the_run() -> None:
    play = Play(orchestration(parallel("fan", [["a"], ["b"]], "join"), say("a"), if_else("b"), say("join")))
    play.do("fan/0/a")
    play.do("fan/1/b", True)
    assert play.open == ["join"]


@pytest.mark.parametrize("limit", [1, 2])
def test_no_more_branches_than_allowed_have_todos(limit: int) -> None:
    play = fan_of_three(max_concurrency=limit)
    play.do("before")
    assert play.open == ["fan/0/a", "fan/1/b", "fan/2/c"][:limit]
    play.do(play.open[-1])
    assert len(play.open) == min(limit, 2)
    assert "fan/2/c" in play.open or limit == 1


def test_branches_within_branches_meet_at_the_outer_join() -> None:
    play = Play(
        orchestration(
            parallel("outer", [["inner"], ["x"]], "join"),
            parallel("inner", [["a"], ["b"]], None),
            say("a", "join"),
            say("b", "join"),
            say("x", "join"),
            say("join"),
        )
    )
    play.do_all("outer/0/inner/0/a", "outer/0/inner/1/b", "outer/1/x")
    assert play.open == ["join"]
    assert play.state == {"a": "<outer/0/inner/0/a>", "b": "<outer/0/inner/1/b>", "x": "<outer/1/x>"}


def test_in_a_body_branches_meet_at_the_next_step_of_the_body() -> None:
    play = Play(
        orchestration(
            loop("rounds", ["fan", "sum"], loop_count=1),
            parallel("fan", [["a"], ["b"]]),
            say("a", "sum"),
            say("b", "sum"),
            say("sum"),
        )
    )
    play.do_all("rounds/1/fan/0/a", "rounds/1/fan/1/b")
    assert play.open == ["rounds/1/sum"]


def test_a_loop_in_a_branch_may_be_left_for_the_join() -> None:
    play = Play(
        orchestration(
            parallel("fan", [["rounds"], ["x"]], "join"),
            loop("rounds", ["inner", "choose"], loop_count=5, next_step_id="never"),
            parallel("inner", [["a"]], None),
            say("a", "join"),
            if_else("choose", yes="join"),
            say("x"),
            say("never"),
            say("join"),
        )
    )
    play.do("fan/1/x")
    play.do("fan/0/rounds/1/inner/0/a")
    play.do("fan/0/rounds/1/choose", True)
    assert play.open == ["join"]


def test_a_failing_branch_fails_the_run_at_once() -> None:
    play = fan_of_three()
    play.do("before", "x")
    play.do("fan/0/a", "not kept")
    play.fail("fan/1/b")
    assert play.open == []
    assert play.end.status is EndStatus.FAILED
    assert play.end.step_id == "b"
    assert play.end.state == {"before": "x"}
    assert [fact["path"] for fact in play.emitted("step_error")] == ["fan/1/b"]
    assert play.emitted("parallel_complete") == []


def test_on_error_inside_a_branch_keeps_the_branch_going() -> None:
    play = Play(
        orchestration(
            parallel("fan", [["a"], ["b"]], "join"),
            say("a", "join", on_error="rescue"),
            say("b", "join"),
            say("rescue", "join"),
            say("join"),
        )
    )
    play.fail("fan/0/a")
    assert play.open == ["fan/1/b", "fan/0/rescue"]
    assert play.pending("fan/0/rescue").state["error"]["step_id"] == "a"
    assert "error" not in play.pending("fan/1/b").state
    play.do_all("fan/1/b", "fan/0/rescue")
    assert play.open == ["join"]
    assert play.state["error"]["code"] == "model_error"


def test_on_error_of_the_parallel_step_takes_a_branch_that_failed() -> None:
    play = fan_of_three(on_error="join")
    play.do("before", "x")
    play.do("fan/0/a", "lost")
    play.fail("fan/2/c", "timeout")
    assert play.open == ["join"]
    assert play.state == {"before": "x", "error": {"step_id": "c", "code": "timeout", "message": "It broke."}}
    assert len(play.emitted("step_error")) == 1


def test_an_outcome_of_a_branch_that_is_no_longer_needed_costs_and_does_nothing_else() -> None:
    play = fan_of_three(on_error="join")
    play.do("before")
    play.fail("fan/0/a")
    assert play.machine.complete("fan/1/b", Done("late", cost_usd=0.5, tokens=2)) == []
    assert play.machine.cost_usd == 0.5
    assert play.open == ["join"]
    assert "shared" not in play.state


def test_an_end_step_in_a_branch_ends_the_run_when_the_other_branches_are_done() -> None:
    play = Play(
        orchestration(
            parallel("fan", [["stop"], ["b"]], "join"), {"id": "stop", "type": "end"}, say("b", "join"), say("join")
        )
    )
    assert play.emitted("orchestration_end") == [{"orch_step_id": "stop", "path": "fan/0/stop"}]
    assert play.open == ["fan/1/b"]
    play.do("fan/1/b", "x")
    assert play.completed() == {"b": "x"}


def test_a_way_from_inside_back_to_the_parallel_step_fails() -> None:
    play = Play(orchestration(say("first", "fan"), parallel("fan", [["a"]], "join"), say("a", "fan"), say("join")))
    play.do_all("first", "fan/0/a")
    assert play.error().code == "bad_route"
    assert '"fan"' in play.error().message


def test_the_same_parallel_step_may_be_visited_again_from_behind_its_join() -> None:
    play = Play(
        orchestration(parallel("fan", [["a"]], "check"), say("a", "check"), if_else("check", yes="fan")),
    )
    play.do("fan/0/a", "one")
    play.do("check", True)
    assert play.open == ["fan~2/0/a"]
    assert dict(play.pending("fan~2/0/a").state) == {"a": "one"}
