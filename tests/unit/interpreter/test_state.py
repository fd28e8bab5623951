"""The state: where it begins, what may be written, and how large it is."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.interpreter.state import Layer, StateRejected, fits, initial_state, measure
from runlane.interpreter.values import EndStatus
from tests.unit.interpreter.play import Play, if_else, loop, nested, orchestration, parallel, say

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def test_the_state_begins_with_defaults_then_the_message_then_the_input() -> None:
    definition = orchestration(
        say("a"), state_schema={"tone": {"default": "dry"}, "user_query": {"default": "none"}, "count": {}}
    )
    assert initial_state(definition, "hello", {"tone": "warm", "user_query": "mine"}) == {
        "tone": "warm",
        "user_query": "mine",
        "count": None,
        "user_input": "hello",
    }


def test_a_machine_starts_from_the_defaults_and_what_it_is_given() -> None:
    definition = orchestration(say("a"), state_schema={"tone": {"default": "dry"}, "size": {"default": 3}})
    assert Play(definition, state={"tone": "warm"}).state == {"tone": "warm", "size": 3}


FITTING: list[tuple[str, list[Any], list[Any]]] = [
    ("any", [1, "a", True, [], {}, None], []),
    ("string", ["", "a", None], [1, True, [], {}]),
    ("number", [1, 1.5, -2, None], ["1", True, [], {}]),
    ("integer", [1, 0, 3.0, None], [1.5, "1", True, [], {}]),
    ("boolean", [True, False, None], [0, 1, "true", [], {}]),
    ("list", [[], [1], None], [{}, "a", 1, True]),
    ("object", [{}, {"a": 1}, None], [[], "a", 1, True]),
]


@pytest.mark.parametrize(("declared", "good", "bad"), FITTING)
def test_which_values_fit_a_declared_type(declared: str, good: list[Any], bad: list[Any]) -> None:
    assert all(fits(value, declared) for value in good)
    assert not any(fits(value, declared) for value in bad)


def test_a_value_of_the_wrong_type_fails_the_step_that_gave_it() -> None:
    play = Play(orchestration(say("a", "b", output_key="count"), say("b"), state_schema={"count": {"type": "integer"}}))
    play.do("a", "three")
    assert play.error().code == "wrong_type"
    assert '"count"' in play.error().message
    assert "integer" in play.error().message
    assert play.end.step_id == "a"
    assert play.end.state == {"count": None}
    assert play.emitted("step_error") == [
        {"orch_step_id": "a", "code": "wrong_type", "error": play.error().message, "path": "a"}
    ]


def test_on_error_takes_a_value_of_the_wrong_type() -> None:
    schema = {"count": {"type": "integer"}}
    play = Play(orchestration(say("a", output_key="count", on_error="b"), say("b"), state_schema=schema))
    play.do("a", "three")
    assert play.open == ["b"]
    assert play.state["error"]["step_id"] == "a"


@pytest.mark.parametrize("given_state", [{"count": "three"}, {"big": "x" * 2000}])
def test_a_run_whose_first_state_is_refused_fails_before_its_first_step(given_state: dict[str, Any]) -> None:
    schema = {"count": {"type": "integer"}}
    play = Play(orchestration(say("a"), state_schema=schema, max_state_bytes=1024), state=given_state)
    assert play.open == []
    assert play.end.status is EndStatus.FAILED
    assert play.error().code in {"wrong_type", "state_too_large"}


def test_a_state_that_grows_too_large_fails_the_step_that_made_it_so() -> None:
    play = Play(orchestration(say("a", "b"), say("b", "c"), say("c"), max_state_bytes=1024))
    play.do("a", "x" * 500)
    play.do("b", "y" * 600)
    assert play.error().code == "state_too_large"
    assert "1024" in play.error().message
    assert play.end.step_id == "b"
    assert "b" not in play.end.state


def test_a_key_that_is_written_again_counts_once() -> None:
    steps = [say(f"s{number}", f"s{number + 1}", output_key="draft") for number in range(20)]
    play = Play(orchestration(*steps, say("s20"), max_state_bytes=1024))
    for number in range(20):
        play.do(f"s{number}", "x" * 900)
    assert play.open == ["s20"]


def test_what_branches_have_written_counts_while_they_run() -> None:
    fan = parallel("fan", [["a"], ["b"], ["c"]], "join")
    play = Play(orchestration(fan, say("a"), say("b"), say("c"), say("join"), max_state_bytes=2048))
    play.do("fan/0/a", "x" * 900)
    play.do("fan/1/b", "x" * 900)
    play.do("fan/2/c", "x" * 900)
    assert play.error().code == "state_too_large"


def leftover(play: Play) -> int:
    """Bytes that are counted and belong to no key of the state."""
    layer = play.machine._engine.root.layer
    return layer.total - sum(layer.sizes.values())


def test_a_join_leaves_nothing_counted() -> None:
    fan = parallel("fan", [["a"], ["b"]], "join")
    play = Play(orchestration(fan, say("a", output_key="k"), say("b", output_key="k"), say("join")))
    play.do_all("fan/0/a", "fan/1/b")
    assert leftover(play) == 0


def test_dropped_branches_leave_nothing_counted() -> None:
    inner = orchestration(say("deep", "deeper"), say("deeper"), id="inner")
    steps = [
        parallel("fan", [["a"], ["rounds"], ["each"], ["sub"], ["b"]], "join", on_error="join"),
        say("a", "a2"),
        say("a2"),
        loop("rounds", ["body"], loop_count=3),
        loop("each", ["body"], for_each="x"),
        say("body"),
        nested("sub", "inner"),
        say("b"),
        say("join"),
    ]
    play = Play(orchestration(*steps), inner)
    play.do("fan/2/each?", ["x", "y"])
    play.do_all("fan/0/a", "fan/1/rounds/1/body", "fan/2/each/1/body", "fan/3/sub/>deep")
    assert leftover(play) > 0
    play.fail("fan/4/b")
    assert play.open == ["join"]
    assert leftover(play) == 0


def test_what_a_failed_loop_collected_is_no_longer_counted() -> None:
    play = Play(orchestration(loop("rounds", ["a"], loop_count=3, on_error="after"), say("a"), say("after")))
    play.do("rounds/1/a", "x" * 100)
    assert leftover(play) > 100
    play.fail("rounds/2/a")
    assert play.open == ["after"]
    assert leftover(play) == 0


def test_what_a_branch_wrote_counts_after_a_loop_in_it_failed() -> None:
    steps = [
        parallel("fan", [["a"], ["b"]], "join"),
        say("a", "rounds"),
        loop("rounds", ["body"], loop_count=3, on_error="after"),
        say("body"),
        say("after"),
        say("b"),
        say("join"),
    ]
    play = Play(orchestration(*steps))
    play.do("fan/0/a", "x" * 1000)
    play.fail("fan/0/rounds/1/body")
    assert play.open == ["fan/1/b", "fan/0/after"]
    assert leftover(play) > 1000


@pytest.mark.parametrize("collect", [True, False])
def test_items_that_do_not_count_leave_nothing_counted(collect: bool) -> None:
    body = [say("a"), if_else("choose", yes="after")]
    step = loop("each", ["a", "choose"], for_each="x", max_concurrency=3, collect=collect)
    play = Play(orchestration(step, *body, say("after")))
    play.do("each?", ["x", "y", "z"])
    play.do_all("each/3/a", "each/2/a", "each/1/a")
    play.do("each/3/choose", False)
    play.do("each/1/choose", True)
    assert play.open == ["after"]
    assert leftover(play) == 0


@given(st.dictionaries(st.text(min_size=1), json_values))
def test_sizes_are_those_of_json(values: dict[str, Any]) -> None:
    layer = Layer({})
    layer.fill(values)
    per_key_slack = sum(4 + len(key.encode()) * 6 for key in values)
    assert abs(layer.total - len(orjson.dumps(values))) <= 2 + per_key_slack


@given(st.lists(st.tuples(st.sampled_from("abc"), json_values)))
def test_the_total_is_what_the_keys_have_now(writes: list[tuple[str, Any]]) -> None:
    outer = Layer({})
    layer = Layer({}, outer=outer, account=outer)
    for key, value in writes:
        layer.write(key, value)
    assert layer.total == outer.total == sum(layer.sizes.values())
    assert layer.total == sum(measure(value) + 5 for value in layer.values.values())
    layer.discard()
    layer.discard()
    assert outer.total == 0


@pytest.mark.parametrize("value", [2**70, "\ud800", {1: object()}])
def test_values_that_are_not_json_have_a_size_too(value: Any) -> None:
    assert measure(value) > 0


def test_a_layer_reads_the_outer_one_and_writes_to_itself() -> None:
    outer = Layer({})
    outer.fill({"a": 1, "b": 2})
    layer = Layer({}, outer=outer)
    view = layer.view
    layer.write("b", 3)
    outer.write("c", 4)
    assert dict(view) == {"a": 1, "b": 3, "c": 4}
    assert dict(outer.view) == {"a": 1, "b": 2, "c": 4}


def test_a_limit_holds_for_all_that_counts_in_a_layer() -> None:
    outer = Layer({}, limit=100)
    inner = Layer({}, account=Layer({}, account=outer))
    inner.write("a", "x" * 50)
    with pytest.raises(StateRejected) as refused:
        inner.write("b", "x" * 50)
    assert refused.value.failed.code == "state_too_large"
    assert (outer.total, inner.total) == (57, 57)
