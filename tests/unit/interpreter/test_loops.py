"""Loops whose rounds follow each other: counted, and while a condition holds."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.interpreter.values import Done, EndStatus
from tests.unit.interpreter.play import Play, if_else, loop, nested, orchestration, parallel, say


def entries(agent: str, *results: Any) -> list[dict[str, Any]]:
    return [{"iteration": number, "agent": agent, "result": result} for number, result in enumerate(results, 1)]


def test_a_counted_loop_repeats_its_body_in_order() -> None:
    play = Play(orchestration(loop("rounds", ["a", "b"], "after", loop_count=2), say("a"), say("b"), say("after")))
    play.finish()
    assert play.paths == ["rounds/1/a", "rounds/1/b", "rounds/2/a", "rounds/2/b", "after"]


def test_rounds_emit_their_events() -> None:
    play = Play(orchestration(loop("rounds", ["a"], loop_count=2), say("a")))
    play.finish()
    step = {"orch_step_id": "rounds", "path": "rounds"}
    assert [fact.type for fact in play.facts] == ["loop_iteration", "loop_iteration", "loop_complete"]
    assert play.emitted("loop_iteration") == [{**step, "iteration": number, "total": 2} for number in (1, 2)]
    assert play.emitted("loop_complete") == [{**step, "iterations_completed": 2}]


def test_each_round_sees_what_the_last_one_wrote_and_at_the_end_there_are_lists() -> None:
    play = Play(
        orchestration(
            loop("rounds", ["a", "b"], "after", loop_count=2, output_key="all"),
            say("a", name="Draft"),
            {"id": "b", "type": "agent", "agent_id": "critic", "name": "Judge", "output_key": "b"},
            say("after"),
        )
    )
    play.do("rounds/1/a", 1)
    play.do("rounds/1/b", 2)
    assert dict(play.pending("rounds/2/a").state) == {"a": 1, "b": 2}
    play.do("rounds/2/a", 3)
    play.do("rounds/2/b", 4)
    a, b = entries("Draft", 1, 3), entries("critic", 2, 4)
    assert dict(play.pending("after").state) == {"a": a, "b": b, "all": {"Draft": a, "Judge": b}}


def test_without_collect_the_last_values_stay() -> None:
    step = loop("rounds", ["a"], loop_count=3, collect=False, output_key="all")
    play = Play(orchestration(step, say("a")))
    play.finish()
    assert play.completed() == {"a": "<rounds/3/a>", "all": "<rounds/3/a>"}
    assert play.end.response == "<rounds/3/a>"


def test_a_collecting_loop_that_is_last_answers_with_its_lists() -> None:
    play = Play(orchestration(loop("rounds", ["a"], loop_count=2), say("a")))
    play.do("rounds/1/a", 1)
    play.do("rounds/2/a", 2)
    assert play.end.response == {"a": entries("a", 1, 2)}
    assert play.completed() == {"a": entries("a", 1, 2)}


def test_steps_of_one_name_and_of_one_key_are_kept_apart_and_together() -> None:
    steps = [say("a", name="Same", output_key="k"), say("b", name="Same", output_key="k")]
    play = Play(orchestration(loop("rounds", ["a", "b"], loop_count=2), *steps))
    for path, value in zip(["rounds/1/a", "rounds/1/b", "rounds/2/a", "rounds/2/b"], range(4), strict=True):
        play.do(path, value)
    assert play.end.response == {"Same": entries("Same", 0, 2), "b": entries("Same", 1, 3)}
    assert [(entry["iteration"], entry["result"]) for entry in play.completed()["k"]] == [
        (1, 0),
        (1, 1),
        (2, 2),
        (2, 3),
    ]


def test_a_step_visited_twice_in_a_round_counts_with_its_last_output() -> None:
    play = Play(orchestration(loop("rounds", ["a", "again"], loop_count=1), say("a"), if_else("again", yes="a")))
    play.do("rounds/1/a", 1)
    play.do("rounds/1/again", True)
    play.do("rounds/1/a~2", 2)
    play.do("rounds/1/again~2", False)
    assert play.completed() == {"a": entries("a", 2)}


def test_answers_of_people_are_collected_and_the_last_one_stays() -> None:
    human = {"id": "ask", "type": "human", "output_key": "answer"}
    play = Play(orchestration(loop("rounds", ["ask"], loop_count=2), human))
    play.do("rounds/1/ask", {"n": 1})
    play.do("rounds/2/ask", {"n": 2})
    assert play.completed() == {"answer": entries("ask", {"n": 1}, {"n": 2}), "human_response": {"n": 2}}


def test_answers_without_a_key_are_collected_where_they_go() -> None:
    play = Play(orchestration(loop("rounds", ["ask"], loop_count=1), {"id": "ask", "type": "human"}))
    play.do("rounds/1/ask", {"n": 1})
    assert play.completed() == {"human_response": entries("ask", {"n": 1})}


def test_rounds_within_rounds() -> None:
    play = Play(
        orchestration(
            loop("outer", ["inner"], loop_count=2),
            loop("inner", ["a"], loop_count=2, output_key="inner_all"),
            say("a"),
        )
    )
    for path, value in zip(
        ["outer/1/inner/1/a", "outer/1/inner/2/a", "outer/2/inner/1/a", "outer/2/inner/2/a"], range(4), strict=True
    ):
        play.do(path, value)
    first, second = {"a": entries("a", 0, 1)}, {"a": entries("a", 2, 3)}
    assert play.completed() == {"a": entries("a", 2, 3), "inner_all": entries("inner", first, second)}


def test_a_type_may_be_that_of_one_round_or_of_the_list() -> None:
    schema = {"a": {"type": "string"}, "b": {"type": "list"}, "c": {"type": "integer"}}
    body = [say("a"), say("b"), say("c")]
    play = Play(orchestration(loop("rounds", ["a", "b", "c"], loop_count=1), *body, state_schema=schema))
    play.do("rounds/1/a", "text")
    play.do("rounds/1/b", "text")
    assert play.open == ["rounds/1/c"]
    play.do("rounds/1/c", "text")
    assert play.error().code == "wrong_type"
    assert '"c"' in play.error().message


# While.


def while_loop(**fields: Any) -> Play:
    step = loop("rounds", ["a"], "after", while_condition="state.x", **fields)
    return Play(orchestration(step, say("a"), say("after")))


def test_a_while_loop_checks_its_condition_before_each_round() -> None:
    play = while_loop()
    (pending,) = play.machine.pending_steps()
    assert (pending.path, pending.part, pending.step.id) == ("rounds/1?", "condition", "rounds")
    play.do("rounds/1?", True)
    play.do("rounds/1/a", 1)
    assert dict(play.pending("rounds/2?").state) == {"a": 1}
    play.do("rounds/2?", False)
    assert play.open == ["after"]
    assert play.state == {"a": entries("a", 1)}
    step = {"orch_step_id": "rounds", "path": "rounds"}
    assert play.emitted("loop_iteration") == [{**step, "iteration": 1, "total": None}]
    assert play.emitted("loop_complete") == [{**step, "iterations_completed": 1}]


def test_a_while_loop_may_have_no_round() -> None:
    play = while_loop(output_key="all")
    play.do("rounds/1?", False)
    assert play.state == {"a": [], "all": {"a": []}}
    assert play.emitted("loop_complete")[0]["iterations_completed"] == 0


def test_evaluating_the_condition_is_not_a_turn() -> None:
    play = while_loop()
    play.do("rounds/1?", True, cost_usd=0.5, tokens=7)
    assert play.machine.turns == 0
    assert (play.machine.cost_usd, play.machine.tokens) == (0.5, 7)
    play.do("rounds/1/a")
    assert play.machine.turns == 1


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_while_loop_fails_past_its_rounds(rounds: int) -> None:
    play = while_loop(max_rounds=rounds)
    for number in range(1, rounds + 1):
        play.do(f"rounds/{number}?", True)
        play.do(f"rounds/{number}/a")
    assert play.machine.end is None
    play.do(f"rounds/{rounds + 1}?", True)
    assert play.error().code == "round_limit"
    assert play.end.step_id == "rounds"


def test_a_while_loop_may_use_all_its_rounds() -> None:
    play = while_loop(max_rounds=1)
    play.do("rounds/1?", True)
    play.do("rounds/1/a")
    play.do("rounds/2?", False)
    assert play.open == ["after"]


# Ways inside and out.


def test_choices_lead_to_steps_of_the_body_and_on_from_there() -> None:
    body = ["choose", "a", "b", "c"]
    play = Play(
        orchestration(loop("rounds", body, loop_count=1), if_else("choose", yes="b"), say("a"), say("b"), say("c"))
    )
    play.do("rounds/1/choose", True)
    play.do_all("rounds/1/b", "rounds/1/c")
    assert play.end.status is EndStatus.COMPLETED


def test_a_choice_of_nothing_ends_the_round() -> None:
    play = Play(
        orchestration(loop("rounds", ["choose", "a"], "after", loop_count=2), if_else("choose"), say("a"), say("after"))
    )
    play.do("rounds/1/choose", True)
    play.do("rounds/2/choose", True)
    assert play.open == ["after"]
    assert play.emitted("loop_complete")[0]["iterations_completed"] == 2


def test_a_way_out_of_the_body_ends_the_loop_there() -> None:
    play = Play(
        orchestration(
            loop("rounds", ["a", "choose"], "after", loop_count=5, output_key="all"),
            say("a"),
            if_else("choose", yes="elsewhere"),
            say("after"),
            say("elsewhere"),
        )
    )
    play.do("rounds/1/a", 1)
    play.do("rounds/1/choose", False)
    play.do("rounds/2/a", 2)
    play.do("rounds/2/choose", True)
    assert play.open == ["elsewhere"]
    assert play.state == {"a": entries("a", 1, 2), "all": {"a": entries("a", 1, 2)}}
    assert play.emitted("loop_complete")[0]["iterations_completed"] == 1


def test_a_way_may_lead_out_of_several_loops() -> None:
    play = Play(
        orchestration(
            loop("outer", ["inner", "x"], loop_count=3),
            loop("inner", ["choose"], loop_count=3),
            if_else("choose", yes="elsewhere", no="x"),
            say("x"),
            say("elsewhere"),
        )
    )
    play.do("outer/1/inner/1/choose", False)
    assert play.open == ["outer/1/x"]
    play.do("outer/1/x")
    play.do("outer/2/inner/1/choose", True)
    assert play.open == ["elsewhere"]
    assert [fact["orch_step_id"] for fact in play.emitted("loop_complete")] == ["inner", "inner", "outer"]


def test_an_error_may_lead_out_of_the_body() -> None:
    play = Play(
        orchestration(
            loop("rounds", ["a"], "after", loop_count=5), say("a", on_error="rescue"), say("after"), say("rescue")
        )
    )
    play.do("rounds/1/a", 1)
    play.fail("rounds/2/a")
    assert play.open == ["rescue"]
    assert play.state["a"] == entries("a", 1)


def test_an_end_step_in_the_body_ends_the_run_with_what_was_collected() -> None:
    play = Play(
        orchestration(
            loop("rounds", ["a", "choose", "stop"], "after", loop_count=5),
            say("a"),
            if_else("choose", yes="stop"),
            {"id": "stop", "type": "end"},
            say("after"),
        )
    )
    play.do("rounds/1/a", 1)
    play.do("rounds/1/choose", True)
    assert play.completed() == {"a": entries("a", 1)}
    assert play.emitted("orchestration_end") == [{"orch_step_id": "stop", "path": "rounds/1/stop"}]


def test_a_body_that_fails_fails_the_loop_and_keeps_what_was_written() -> None:
    play = Play(
        orchestration(loop("rounds", ["a", "b"], loop_count=5, on_error="rescue"), say("a"), say("b"), say("rescue"))
    )
    play.do("rounds/1/a", 1)
    play.fail("rounds/1/b")
    assert play.open == ["rescue"]
    assert play.state == {"a": 1, "error": {"step_id": "b", "code": "model_error", "message": "It broke."}}


def test_a_condition_that_cannot_be_worked_out_fails_the_loop() -> None:
    play = while_loop(on_error="after")
    play.fail("rounds/1?", "bad_expression")
    assert play.open == ["after"]
    assert play.state["error"]["step_id"] == "rounds"
    assert play.machine.turns == 0


def test_everything_may_be_in_a_body() -> None:
    inner = orchestration(say("deep"), id="inner")
    main = orchestration(
        loop("rounds", ["fan", "sub"], loop_count=2, output_key="all"),
        parallel("fan", [["a"], ["b"]], output_key="both"),
        say("a"),
        say("b"),
        nested("sub", "inner", output_key="answer"),
    )
    play = Play(main, inner)
    play.finish()
    assert play.paths == [
        *("rounds/1/fan/0/a", "rounds/1/fan/1/b", "rounds/1/sub/>deep"),
        *("rounds/2/fan/0/a", "rounds/2/fan/1/b", "rounds/2/sub/>deep"),
    ]
    assert play.completed()["answer"] == entries("sub", "<rounds/1/sub/>deep>", "<rounds/2/sub/>deep>")
    assert set(play.completed()["all"]) == {"fan", "sub"}


def test_a_loop_in_its_own_body_fails() -> None:
    play = Play(orchestration(say("first", "rounds"), loop("rounds", ["rounds"], loop_count=2)))
    play.do("first")
    assert play.error().code == "bad_route"


def test_a_loop_that_makes_no_progress_ends() -> None:
    play = Play(orchestration(loop("rounds", ["fan"], loop_count=1_000_000), parallel("fan", [[]])))
    assert play.error().code == "no_progress"


def test_a_loop_that_does_nothing_a_thousand_times_is_done() -> None:
    play = Play(orchestration(loop("rounds", ["fan"], loop_count=1_000), parallel("fan", [[]])))
    assert play.end.status is EndStatus.COMPLETED


def test_a_body_with_an_unknown_step_fails() -> None:
    play = Play(orchestration(loop("rounds", ["missing"], loop_count=1)))
    assert play.error().code == "unknown_step"


def test_a_loop_is_collected_only_as_far_as_the_state_may_grow() -> None:
    play = Play(orchestration(loop("rounds", ["a"], loop_count=100), say("a"), max_state_bytes=4096))
    end = play.finish(lambda _: Done("x" * 500))
    assert end.error is not None
    assert end.error.code == "state_too_large"
    assert play.machine.turns < 10
