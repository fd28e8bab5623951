"""The cursor: what is stored of a machine, and what can be restored from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from runlane.interpreter.machine import Machine
from runlane.interpreter.state import StateRejected
from runlane.interpreter.values import Done, EndStatus, Failed, OrchestrationEnd
from tests.unit.interpreter.play import Play, loop, nested, orchestration, parallel, say, through_json


def everything() -> Play:
    """A run that is in branches, items, rounds and a nested orchestration at the same time."""
    inner = orchestration(say("deep", "deeper"), say("deeper"), id="inner")
    main = orchestration(
        say("first", "fan"),
        parallel("fan", [["each"], ["rounds"], ["sub"], ["asked"], ["quick"]], "join"),
        loop("each", ["on_item"], "join", for_each="x", max_concurrency=2),
        say("on_item"),
        loop("rounds", ["body"], "join", loop_count=3),
        say("body"),
        nested("sub", "inner", "join"),
        loop("asked", ["body"], "join", while_condition="x", collect=False),
        say("quick", "join"),
        say("join"),
    )
    play = Play(main, inner, state={"user_input": "hello"})
    play.do("first", {"a": [1]}, cost_usd=0.1, tokens=3)
    play.do("fan/0/each?", ["x", "y", "z"])
    play.do_all("fan/0/each/2/on_item", "fan/1/rounds/1/body", "fan/2/sub/>deep", "fan/4/quick")
    play.do("fan/3/asked/1?", True)
    return play


def test_it_is_plain_json() -> None:
    cursor = everything().machine.cursor()
    assert orjson.loads(orjson.dumps(cursor)) == cursor


def test_a_restored_machine_has_the_position_of_the_first_one() -> None:
    play = everything()
    again = through_json(play.machine, play.library)
    assert again.cursor() == play.machine.cursor()
    assert [(pending.path, dict(pending.state)) for pending in again.pending_steps()] == [
        (pending.path, dict(pending.state)) for pending in play.machine.pending_steps()
    ]
    assert (again.turns, again.tokens, again.cost_usd) == (5, 3, 0.1)
    assert again.opening == []


def test_a_restored_machine_counts_the_same_bytes() -> None:
    play = everything()
    again = through_json(play.machine, play.library)
    assert again._engine.root.layer.total == play.machine._engine.root.layer.total


def test_a_restored_branch_that_met_an_end_still_ends_the_run() -> None:
    fan = parallel("fan", [["stop"], ["a"]], "join")
    play = Play(orchestration(fan, {"id": "stop", "type": "end"}, say("a"), say("join")))
    again = through_json(play.machine, play.library)
    again.complete("fan/1/a", Done("x"))
    assert again.end is not None
    assert again.end.status is EndStatus.COMPLETED


@pytest.mark.parametrize("kind", [{"loop_count": 2}, {"for_each": "x"}, {"for_each": "x", "max_concurrency": 3}])
@pytest.mark.parametrize("collect", [True, False])
def test_a_loop_restored_at_every_step_gives_the_same(kind: dict[str, Any], collect: bool) -> None:
    definition = orchestration(
        loop("rounds", ["a"], loop_count=None, collect=collect, output_key="all") | kind, say("a")
    )
    ends: list[OrchestrationEnd | None] = []
    for stored in (False, True):
        machine = Machine.start({"main": definition}, "main", {})
        while machine.end is None:
            pending = machine.pending_steps()[-1]
            machine.complete(pending.path, Done(["x", "y"] if pending.part == "items" else pending.path))
            machine = through_json(machine, {"main": definition}) if stored else machine
        ends.append(machine.end)
    assert ends[0] == ends[1]


def test_a_cursor_does_not_change_when_the_machine_continues() -> None:
    play = everything()
    cursor = play.machine.cursor()
    before = orjson.dumps(cursor)
    play.finish(lambda pending: Done(False if pending.part == "condition" else "x"))
    assert orjson.dumps(cursor) == before


def test_a_machine_does_not_change_when_a_copy_from_its_cursor_continues() -> None:
    play = everything()
    before = orjson.dumps(play.machine.cursor())
    again = Machine.restore(play.library, play.machine.cursor())
    for pending in again.pending_steps():
        again.complete(pending.path, Done("y" if pending.part == "step" else False))
    assert orjson.dumps(play.machine.cursor()) == before


def test_agents_that_are_orchestrations_need_not_be_given_again() -> None:
    inner = orchestration(say("one"), id="inner")
    steps = [say("a", "b"), {"id": "b", "type": "agent", "agent_id": "boss"}]
    play = Play(orchestration(*steps), inner, agents={"boss": "inner"})
    again = through_json(play.machine, play.library)
    again.complete("a", Done("x"))
    assert [pending.path for pending in again.pending_steps()] == ["b/>one"]


def test_a_waiting_try_is_kept() -> None:
    play = Play(orchestration(say("a", retry={"attempts": 3, "backoff_seconds": 8})))
    play.fail("a", retryable=True)
    (pending,) = through_json(play.machine, play.library).pending_steps()
    assert (pending.tries, pending.delay_seconds) == (1, 8.0)


def test_tries_of_what_contains_steps_are_kept() -> None:
    inner = orchestration(say("one"), id="inner")
    play = Play(orchestration(nested("sub", "inner", retry={"attempts": 2})), inner)
    play.fail("sub/>one", retryable=True)
    again = through_json(play.machine, play.library)
    again.complete("sub~2/>one", Failed("timeout", "It broke.", retryable=True))
    assert again.end is not None
    assert again.end.status is EndStatus.FAILED


@pytest.mark.parametrize("outcome", [Done("x"), Failed("timeout", "slow", retryable=True, cost_usd=0.5, tokens=3)])
def test_an_ended_machine_stays_ended(outcome: Done | Failed) -> None:
    play = Play(orchestration(say("a")), state={"b": 1})
    play.settle("a", outcome)
    again = through_json(play.machine, play.library)
    assert again.end == play.end
    assert again.pending_steps() == []


def test_a_cursor_of_another_version_is_refused() -> None:
    play = Play(orchestration(say("a")))
    with pytest.raises(ValueError, match="version 2"):
        Machine.restore(play.library, {**play.machine.cursor(), "version": 2})


# Another state.


def with_state(machine: Machine, **changes: Any) -> Machine:
    return machine.with_state({**machine.state, **changes})


def test_a_machine_with_another_state_continues_from_the_same_step() -> None:
    play = Play(orchestration(say("a", "b"), say("b", "c"), say("c")))
    play.do("a", "first")
    fork = with_state(play.machine, a="edited", new=[1])
    (pending,) = fork.pending_steps()
    assert pending.path == "b"
    assert dict(pending.state) == {"a": "edited", "new": [1]}
    assert play.state == {"a": "first"}
    fork.complete("b", Done("x"))
    assert play.open == ["b"]
    assert fork.turns == 2


def test_keys_may_be_taken_away() -> None:
    play = Play(orchestration(say("a", "b"), say("b")))
    play.do("a", "first")
    assert dict(play.machine.with_state({}).state) == {}


def test_branches_keep_what_they_wrote_and_see_the_new_state() -> None:
    play = everything()
    fork = with_state(play.machine, first="edited")
    states = {pending.path: pending.state for pending in fork.pending_steps()}
    assert {state["first"] for path, state in states.items() if ">" not in path} == {"edited"}
    assert states["fan/1/rounds/2/body"]["body"] == "<fan/1/rounds/1/body>"


def refused(machine: Machine, state: Mapping[str, Any]) -> str:
    with pytest.raises(StateRejected) as error:
        machine.with_state(state)
    return error.value.failed.code


def test_another_state_must_fit_its_types() -> None:
    play = Play(orchestration(say("a"), state_schema={"n": {"type": "integer"}}))
    assert refused(play.machine, {"n": "three"}) == "wrong_type"
    assert dict(play.machine.with_state({"n": 3}).state) == {"n": 3}


def test_another_state_must_not_be_too_large() -> None:
    fan = parallel("fan", [["a"], ["b"]])
    play = Play(orchestration(fan, say("a"), say("b"), max_state_bytes=1024))
    assert refused(play.machine, {"x": "x" * 2000}) == "state_too_large"
    play.do("fan/0/a", "x" * 600)
    assert refused(play.machine, {"x": "x" * 600}) == "state_too_large"
    assert dict(play.machine.with_state({"x": "x" * 300}).state) == {"x": "x" * 300}


def test_what_a_loop_collected_may_stay_as_it_is() -> None:
    definition = orchestration(
        loop("rounds", ["a"], "b", loop_count=1), say("a"), say("b"), state_schema={"a": {"type": "string"}}
    )
    play = Play(definition)
    play.do("rounds/1/a", "text")
    fork = through_json(play.machine, play.library).with_state({**play.state, "more": 1})
    assert fork.state["a"] == [{"iteration": 1, "agent": "a", "result": "text"}]


def test_a_state_is_counted_the_same_before_and_after() -> None:
    play = Play(orchestration(loop("rounds", ["a"], "b", loop_count=4, output_key="all"), say("a"), say("b")))
    for _ in range(4):
        play.do(play.open[0], "x" * 100)
    fork = play.machine.with_state(play.state)
    first, second = play.machine._engine.root.layer, fork._engine.root.layer
    assert abs(first.total - second.total) < 100
    assert first.total >= second.total
