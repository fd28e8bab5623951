"""Loops over the items of a list: the result is as if one followed the other, however many run at a time."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from runlane.interpreter.values import EndStatus
from tests.unit.interpreter.play import Play, StepData, if_else, loop, orchestration, say


def entries(agent: str, *results: Any) -> list[dict[str, Any]]:
    return [{"iteration": number, "agent": agent, "result": result} for number, result in enumerate(results, 1)]


def each(*body: StepData, **fields: Any) -> Play:
    step = loop("each", [step["id"] for step in body], "after", for_each="state.items", **fields)
    return Play(orchestration(step, *body, say("after"), say("elsewhere")), state={"user_input": "hello"})


def test_the_list_is_evaluated_once() -> None:
    play = each(say("a"))
    (pending,) = play.machine.pending_steps()
    assert (pending.path, pending.part, pending.step.id) == ("each?", "items", "each")
    play.do("each?", ["x", "y"], cost_usd=0.5, tokens=2)
    assert (play.machine.turns, play.machine.cost_usd, play.machine.tokens) == (0, 0.5, 2)


def test_one_item_at_a_time_by_default() -> None:
    play = each(say("a"), say("b"))
    play.do("each?", ["x", "y"])
    play.do("each/1/a")
    play.do("each/1/b")
    assert play.open == ["each/2/a"]


def test_each_item_has_its_item_and_index() -> None:
    play = each(say("a"), max_concurrency=2)
    play.do("each?", ["x", "y"])
    assert dict(play.pending("each/1/a").state) == {"user_input": "hello", "item": "x", "index": 0}
    assert dict(play.pending("each/2/a").state) == {"user_input": "hello", "item": "y", "index": 1}
    play.do_all("each/2/a", "each/1/a")
    assert "item" not in play.state
    assert "index" not in play.state


def test_items_emit_their_events() -> None:
    play = each(say("a"), max_concurrency=2)
    play.do("each?", ["x", "y", "z"])
    step = {"orch_step_id": "each", "path": "each"}
    assert play.emitted("loop_iteration") == [{**step, "iteration": number, "total": 3} for number in (1, 2)]
    play.do_all("each/1/a", "each/2/a", "each/3/a")
    assert len(play.emitted("loop_iteration")) == 3
    assert play.emitted("loop_complete") == [{**step, "iterations_completed": 3}]


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_no_more_items_than_allowed_are_worked_on(limit: int) -> None:
    play = each(say("a"), max_concurrency=limit)
    play.do("each?", list(range(5)))
    done = 0
    while play.open != ["after"]:
        assert len(play.open) == min(limit, 5 - done)
        play.do(play.open[-1])
        done += 1


@pytest.mark.parametrize("order", list(permutations(["each/1/a", "each/2/a", "each/3/a"])))
def test_results_are_in_the_order_of_the_items(order: tuple[str, ...]) -> None:
    play = each(say("a"), max_concurrency=3, output_key="all")
    play.do("each?", ["x", "y", "z"])
    play.do_all(*order)
    results = entries("a", "<each/1/a>", "<each/2/a>", "<each/3/a>")
    assert play.open == ["after"]
    assert play.state == {"user_input": "hello", "a": results, "all": {"a": results}}


@pytest.mark.parametrize("order", list(permutations(["each/1/a", "each/2/a", "each/3/a"])))
def test_without_collect_the_last_item_wins(order: tuple[str, ...]) -> None:
    play = each(say("a"), max_concurrency=3, collect=False, output_key="last")
    play.do("each?", ["x", "y", "z"])
    play.do_all(*order)
    assert play.state == {"user_input": "hello", "a": "<each/3/a>", "last": "<each/3/a>"}


def test_items_do_not_see_each_other_even_one_after_the_other() -> None:
    play = each(say("a"), say("b"))
    play.do("each?", ["x", "y"])
    play.do_all("each/1/a", "each/1/b")
    assert "a" not in play.pending("each/2/a").state


def test_what_else_an_item_wrote_is_merged_in_order() -> None:
    human = {"id": "ask", "type": "human", "output_key": "answer"}
    play = each(human, max_concurrency=2)
    play.do("each?", ["x", "y"])
    play.do("each/2/ask", {"n": 2})
    play.do("each/1/ask", {"n": 1})
    assert play.state["human_response"] == {"n": 2}
    assert play.state["answer"] == entries("ask", {"n": 1}, {"n": 2})


def test_an_empty_list_is_done_at_once() -> None:
    play = each(say("a"), output_key="all")
    play.do("each?", [])
    assert play.open == ["after"]
    assert play.state == {"user_input": "hello", "a": [], "all": {"a": []}}
    assert play.emitted("loop_complete")[0]["iterations_completed"] == 0


@pytest.mark.parametrize("value", [None, "text", 3, {"a": 1}, True])
def test_a_value_that_is_not_a_list_fails_the_loop(value: Any) -> None:
    play = each(say("a"), on_error="elsewhere")
    play.do("each?", value)
    assert play.open == ["elsewhere"]
    assert play.state["error"]["step_id"] == "each"
    assert play.state["error"]["code"] == "wrong_type"
    assert "must return a list" in play.state["error"]["message"]


def test_a_failing_item_fails_the_loop_at_once() -> None:
    play = each(say("a"), max_concurrency=3, on_error="elsewhere")
    play.do("each?", ["x", "y", "z"])
    play.do("each/1/a", "lost")
    play.fail("each/3/a")
    assert play.open == ["elsewhere"]
    assert "a" not in play.state
    assert play.state["error"]["step_id"] == "a"


# Ways out: as if one after the other.


def leaving() -> Play:
    play = each(say("a"), if_else("choose", yes="elsewhere"), max_concurrency=3)
    play.do("each?", ["x", "y", "z", "never"])
    return play


@pytest.mark.parametrize("order", list(permutations([1, 2, 3])))
def test_an_item_that_leads_out_ends_the_loop_and_those_after_it_do_not_count(order: tuple[int, ...]) -> None:
    play = leaving()
    for number in order:
        # The third may be dropped already.
        if f"each/{number}/a" in play.open:
            play.do(f"each/{number}/a", number)
            play.do(f"each/{number}/choose", number == 2)
    assert play.open == ["elsewhere"]
    assert play.state["a"] == entries("a", 1, 2)
    assert play.emitted("loop_complete")[0]["iterations_completed"] == 1
    assert all("each/4" not in path for path in play.paths)


def test_items_before_the_one_that_leads_out_are_finished_first() -> None:
    play = leaving()
    play.do("each/2/a", 2)
    play.do("each/2/choose", True)
    assert play.open == ["each/1/a"]
    play.do("each/1/a", 1)
    play.do("each/1/choose", True)
    assert play.open == ["elsewhere"]
    assert play.state["a"] == entries("a", 1)


def test_an_end_step_in_an_item_ends_the_run() -> None:
    play = each(say("a"), if_else("choose", yes="stop"), {"id": "stop", "type": "end"}, max_concurrency=2)
    play.do("each?", ["x", "y"])
    play.do("each/1/a", 1)
    play.do("each/1/choose", True)
    assert play.end.status is EndStatus.COMPLETED
    assert play.end.state["a"] == entries("a", 1)


def test_items_within_items() -> None:
    play = Play(
        orchestration(
            loop("outer", ["inner"], for_each="x", max_concurrency=2),
            loop("inner", ["a"], for_each="y", max_concurrency=2, output_key="inner_all"),
            say("a"),
        )
    )
    play.do("outer?", ["x", "y"])
    assert play.open == ["outer/1/inner?", "outer/2/inner?"]
    assert play.pending("outer/2/inner?").state["item"] == "y"
    play.do("outer/2/inner?", [1, 2])
    play.do("outer/1/inner?", [])
    assert play.pending("outer/2/inner/2/a").state["item"] == 2
    play.do_all("outer/2/inner/2/a", "outer/2/inner/1/a")
    second = {"a": entries("a", "<outer/2/inner/1/a>", "<outer/2/inner/2/a>")}
    assert play.completed()["inner_all"] == entries("inner", {"a": []}, second)
    assert play.completed()["a"] == second["a"]


def test_a_list_that_is_too_large_for_the_state_fails_the_loop() -> None:
    play = Play(orchestration(loop("each", ["a"], for_each="x"), say("a"), max_state_bytes=1024))
    play.do("each?", ["x" * 100] * 20)
    assert play.error().code == "state_too_large"
