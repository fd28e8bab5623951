"""Guards: limits on iterations, turns and costs."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from runlane.interpreter.machine import Machine, OrchestrationBudget
from runlane.interpreter.values import Done, EndStatus, Failed
from tests.unit.interpreter.play import Play, StepData, if_else, loop, orchestration, parallel, say

# Ways back.


def cycle(head: StepData, **fields: Any) -> Play:
    """head -> check -> head ..., with a route out of the check."""
    return Play(orchestration(head, if_else("check", yes="head", no="after"), say("after"), **fields))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_step_that_ways_lead_back_to_is_executed_as_often_as_it_allows(limit: int) -> None:
    play = cycle(say("head", "check", max_iterations=limit))
    end = play.finish(lambda pending: Done(pending.step.id == "check"), limit=100)
    assert sum(path.startswith("head") for path in play.paths) == limit
    assert end.status is EndStatus.FAILED
    assert end.error is not None
    assert (end.error.code, end.step_id, end.loop_limits) == ("loop_limit", "head", ())
    assert f"max_iterations is {limit}" in end.error.message


def test_a_loop_that_ends_within_its_limit_is_an_ordinary_end() -> None:
    play = cycle(say("head", "check", max_iterations=3))
    end = play.finish(lambda pending: Done(pending.path in ("check", "check~2")))
    assert play.paths == ["head", "check", "head~2", "check~2", "head~3", "check~3", "after"]
    assert (end.status, end.loop_limits) == (EndStatus.COMPLETED, ())
    assert play.emitted("loop_limit_reached") == []


def test_the_execution_that_is_one_too_many_fails_under_a_path_of_its_own() -> None:
    play = cycle(say("head", "check", max_iterations=1, on_error="after"))
    play.do("head")
    play.do("check", True)
    reached = {"orch_step_id": "head", "iterations": 1, "max_iterations": 1, "on_limit": "fail", "path": "head"}
    assert play.emitted("loop_limit_reached") == [reached]
    (error,) = play.emitted("step_error")
    assert (error["orch_step_id"], error["code"], error["path"]) == ("head", "loop_limit", "head~2")
    assert play.open == ["after"]
    assert play.state["error"]["code"] == "loop_limit"


def test_an_error_route_that_leads_back_to_the_limit_ends_the_run() -> None:
    play = Play(orchestration(say("head", "check", max_iterations=1, on_error="head"), if_else("check", yes="head")))
    play.do("head")
    play.do("check", True)
    assert play.error().code == "no_progress"


@pytest.mark.parametrize("contained", [loop("rounds", ["a", "again"], loop_count=2), parallel("rounds", [["a"]])])
def test_a_limit_inside_fails_what_contains_it(contained: StepData) -> None:
    steps = [say("a", "again", max_iterations=1), if_else("again", yes="a"), say("rescue")]
    play = Play(orchestration({**contained, "on_error": "rescue"}, *steps))
    (first,) = play.open
    play.do(first)
    play.do(first.replace("/a", "/again"), True)
    assert play.open == ["rescue"]
    assert play.state["error"]["code"] == "loop_limit"


def test_with_continue_control_goes_to_what_follows_the_step() -> None:
    play = cycle(say("head", "after", max_iterations=1), entry_step_id="check")
    for path in ("check", "head", "after"):
        assert play.open == [path]
        play.do(path, True)
    assert play.end.status is EndStatus.COMPLETED
    assert play.emitted("loop_limit_reached") == []

    play = Play(
        orchestration(
            say("head", "check", max_iterations=2, on_limit="continue"),
            if_else("check", yes="head", max_iterations=9),
            say("after"),
        )
    )
    play.do("head")
    play.do("check", True)
    play.do("head~2")
    play.do("check~2", True)
    assert play.emitted("loop_limit_reached") == [
        {"orch_step_id": "head", "iterations": 2, "max_iterations": 2, "on_limit": "continue", "path": "head~2"}
    ]
    assert play.open == ["check~3"]


def test_with_continue_the_end_names_the_limits_that_were_reached() -> None:
    play = Play(
        orchestration(
            if_else("head", yes="work", max_iterations=2, on_limit="continue"),
            say("work", "head"),
        )
    )
    play.do("head", True)
    play.do("work", 1)
    play.do("head~2", True)
    play.machine = Machine.restore(play.library, play.machine.cursor())
    play.do("work~2", 2)
    assert play.end.status is EndStatus.COMPLETED
    assert play.end.response == 2
    assert play.end.loop_limits == ("head",)
    assert Machine.restore(play.library, play.machine.cursor()).end == play.end


def test_a_step_that_leads_to_itself_ends() -> None:
    play = Play(orchestration(say("a", "a", max_iterations=3, on_limit="continue")))
    end = play.finish()
    assert end.status is EndStatus.COMPLETED
    assert play.paths == ["a", "a~2", "a~3"]
    assert [fact["iterations"] for fact in play.emitted("loop_limit_reached")] == [3, 3]
    assert end.loop_limits == ("a",)


def test_only_the_step_that_a_way_leads_back_to_is_counted() -> None:
    """The steps between are repeated because of it; their own limits count routes back to them."""
    steps = [
        say("head", "middle", max_iterations=6),
        say("middle", "check", max_iterations=1),
        if_else("check", yes="head", max_iterations=1),
    ]
    play = Play(orchestration(*steps))
    play.finish(lambda pending: Done(pending.path != "check~6"))
    assert play.paths[-3:] == ["head~6", "middle~6", "check~6"]
    assert play.emitted("loop_limit_reached") == []


def test_past_a_limit_the_steps_that_follow_are_counted_themselves() -> None:
    steps = [
        say("head", "check", max_iterations=2, on_limit="continue"),
        if_else("check", yes="head", max_iterations=3, on_limit="continue"),
    ]
    play = Play(orchestration(*steps))
    end = play.finish(lambda _: Done(True))
    assert play.paths == ["head", "check", "head~2", "check~2", "check~3", "check~4"]
    assert [fact["orch_step_id"] for fact in play.emitted("loop_limit_reached")] == ["head", "head", "head", "check"]
    assert end.status is EndStatus.COMPLETED
    assert end.loop_limits == ("head", "check")


def test_two_ways_to_one_step_are_not_a_way_back() -> None:
    steps = [if_else("choose", yes="left", no="right"), say("left", "join"), say("right", "join")]
    play = Play(orchestration(*steps, say("join", max_iterations=1)))
    play.do("choose", True)
    play.do("left")
    assert play.open == ["join"]
    assert play.emitted("loop_limit_reached") == []


def test_people_may_send_work_back_as_often_as_they_like() -> None:
    review = {"id": "review", "type": "human", "next_step_id": "judge", "max_iterations": 1}
    steps = [review, if_else("judge", yes="review", no="after", max_iterations=1), say("after")]
    play = Play(orchestration(*steps, max_total_turns=1000))
    for number in range(1, 101):
        visit = "" if number == 1 else f"~{number}"
        play.do(f"review{visit}", "again")
        play.do(f"judge{visit}", True)
    assert play.open == ["review~101"]
    assert play.emitted("loop_limit_reached") == []


def test_people_who_never_stop_are_stopped_by_the_turns() -> None:
    review = {"id": "review", "type": "human", "next_step_id": "review"}
    play = Play(orchestration(review, max_total_turns=20))
    end = play.finish()
    assert end.error is not None
    assert end.error.code == "turn_limit"


def test_ways_back_are_counted_from_zero_in_each_round() -> None:
    play = Play(
        orchestration(
            loop("rounds", ["a", "again"], loop_count=3),
            say("a", max_iterations=2),
            if_else("again", yes="a", max_iterations=9),
        )
    )
    end = play.finish(lambda pending: Done(not pending.path.endswith("~2")))
    assert end.status is EndStatus.COMPLETED
    assert play.emitted("loop_limit_reached") == []


def test_a_way_back_after_an_error_is_counted() -> None:
    play = Play(orchestration(say("fix", "work", max_iterations=3), say("work", on_error="fix")))
    for visit in ("", "~2", "~3"):
        play.do(f"fix{visit}")
        play.fail(f"work{visit}")
    assert play.emitted("loop_limit_reached")[0]["orch_step_id"] == "fix"


# Turns.


def chain(length: int, **fields: Any) -> Play:
    steps = [say(f"s{number}", f"s{number + 1}") for number in range(length - 1)]
    return Play(orchestration(*steps, say(f"s{length - 1}"), **fields))


def test_a_run_may_use_all_its_turns() -> None:
    play = chain(3, max_total_turns=3)
    assert play.finish().status is EndStatus.COMPLETED
    assert play.machine.turns == 3


def test_a_run_that_would_need_one_turn_more_fails_before_it() -> None:
    play = chain(4, max_total_turns=3)
    end = play.finish()
    assert play.paths == ["s0", "s1", "s2"]
    assert end.error is not None
    assert end.error.code == "turn_limit"
    assert "max_total_turns is 3" in end.error.message
    assert end.step_id is None
    assert play.open == []


def test_no_on_error_takes_the_end_of_the_turns() -> None:
    play = Play(orchestration(say("a", "b"), say("b", on_error="c"), say("c"), max_total_turns=1))
    play.do("a")
    assert play.error().code == "turn_limit"


@pytest.mark.parametrize("seed", range(5))
def test_turns_do_not_depend_on_which_branch_is_faster(seed: int) -> None:
    branches = [say(f"b{number}", f"c{number}") for number in range(3)]
    ends = [say(f"c{number}", "join") for number in range(3)]
    fan = parallel("fan", [["b0"], ["b1"], ["b2"]], "join")
    for limit, status in ((7, EndStatus.COMPLETED), (6, EndStatus.FAILED)):
        play = Play(orchestration(fan, *branches, *ends, say("join"), max_total_turns=limit))
        choose = Random(seed)
        while play.machine.end is None:
            play.do(choose.choice(play.open))
        assert play.end.status is status
        assert play.machine.turns == limit


def test_a_failed_step_is_a_turn_and_its_tries_are_one() -> None:
    retry = {"attempts": 3, "backoff_seconds": 0}
    play = Play(orchestration(say("a", on_error="b", retry=retry), say("b")))
    for _ in range(3):
        play.fail("a", retryable=True)
    assert play.machine.turns == 1
    assert play.open == ["b"]


def test_a_loop_may_end_on_its_last_turn() -> None:
    play = Play(orchestration(loop("rounds", ["a"], while_condition="x"), say("a"), max_total_turns=1))
    play.do("rounds/1?", True)
    play.do("rounds/1/a")
    assert play.open == ["rounds/2?"]
    play.do("rounds/2?", False)
    assert play.end.status is EndStatus.COMPLETED


# Costs.


def test_a_run_that_has_cost_too_much_does_not_continue() -> None:
    play = chain(3, max_total_cost_usd=0.5)
    play.do("s0", cost_usd=0.5, tokens=10)
    assert not play.machine.over_budget
    assert play.machine.budgets("s1") == [OrchestrationBudget("main", 0.5, 0.5, "fail")]
    assert play.machine.budgets("s1", {"s1": 0.25, "gone": 9.0}) == [OrchestrationBudget("main", 0.5, 0.75, "fail")]
    play.do("s1", cost_usd=0.01)
    assert play.machine.over_budget
    assert play.error().code == "cost_limit"
    assert "0.51" in play.error().message
    assert play.machine.cost_usd == 0.51


def test_a_run_that_is_done_may_have_cost_too_much() -> None:
    play = chain(1, max_total_cost_usd=0.5)
    play.do("s0", cost_usd=2)
    assert play.end.status is EndStatus.COMPLETED
    assert play.machine.over_budget


def test_failures_cost_too() -> None:
    play = Play(orchestration(say("a", retry={"attempts": 5}), max_total_cost_usd=0.5))
    play.settle("a", Failed("timeout", "slow", retryable=True, cost_usd=0.4, tokens=3))
    assert play.open == ["a"]
    play.settle("a", Failed("timeout", "slow", retryable=True, cost_usd=0.4, tokens=3))
    assert play.error().code == "cost_limit"
    assert (play.machine.cost_usd, play.machine.tokens) == (0.8, 6)


def test_a_late_outcome_may_use_up_the_budget() -> None:
    fan = parallel("fan", [["a"], ["b"]], on_error="c")
    play = Play(orchestration(fan, say("a"), say("b"), say("c", "d"), say("d"), max_total_cost_usd=0.5))
    play.fail("fan/0/a")
    play.machine.complete("fan/1/b", Done(cost_usd=1.0))
    assert play.error().code == "cost_limit"


def test_costs_are_exact_whatever_the_order() -> None:
    totals = set[float]()
    for order in ([0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.2, 0.3, 0.1]):
        play = chain(4)
        for number, cost in enumerate(order):
            play.do(f"s{number}", cost_usd=cost)
        totals.add(play.machine.cost_usd)
    assert totals == {0.6}


def test_without_a_cap_nothing_is_over_budget() -> None:
    play = chain(2)
    play.do("s0", cost_usd=1e6)
    assert not play.machine.over_budget
    assert play.machine.budgets("s1") == []


# Nesting.


def test_steps_inside_each_other_have_a_limit() -> None:
    depth = 40
    loops = [loop(f"l{number}", [f"l{number + 1}"], loop_count=1) for number in range(depth)]
    play = Play(orchestration(*loops, say(f"l{depth}")))
    assert play.error().code == "nesting_limit"


def test_steps_may_be_inside_each_other_quite_deep() -> None:
    depth = 32
    loops = [loop(f"l{number}", [f"l{number + 1}"], loop_count=1) for number in range(depth)]
    play = Play(orchestration(*loops, say(f"l{depth}")))
    assert play.finish().status is EndStatus.COMPLETED
