"""Steps that need no model: what they return, what they wait for, and how they fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from runlane.errors import Fail, InvalidInput, LeaseLost, Retry, Unavailable
from runlane.interpreter.values import Done
from runlane.steps.dispatch import PreviousStep, StepWait, WaitKind, perform_step
from tests.unit.step_bench import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.services.sandbox.close()


async def test_transform(bench: Bench) -> None:
    step = {"type": "transform", "transform_code": "result = [x * 2 for x in state.xs]"}
    assert await bench.done(step, {"xs": [1, 2]}) == Done([2, 4])
    assert bench.emitted("transform_result") == [{"result": "[2,4]"}]
    assert (await bench.done({"type": "transform", "transform_code": "result = 'x' * 9000"})).output == "x" * 9000
    assert len(bench.emitted("transform_result")[1]["result"]) == 500
    failed = await bench.failed({"type": "transform", "transform_code": "x = 1\nresult = 1 / 0"})
    assert (failed.code, failed.retryable) == ("expression_error", False)
    assert failed.message.startswith("Line 2: ZeroDivisionError")


async def test_if_else_and_switch(bench: Bench) -> None:
    assert (await bench.done({"type": "if_else", "if_condition": "state.n > 2"}, {"n": 3})).output is True
    assert (await bench.done({"type": "if_else", "if_condition": "state.n"}, {"n": []})).output is False
    switch = {"type": "switch", "switch_expression": "state.kind.lower()", "switch_cases": {"a": None}}
    assert (await bench.done(switch, {"kind": "A"})).output == "a"
    # An error is neither false nor the default.
    assert (await bench.failed({"type": "if_else", "if_condition": "state.n > 2"}, {})).code == "expression_error"
    assert (await bench.failed(switch, {})).code == "expression_error"
    assert (await bench.failed({"type": "if_else", "if_condition": "().__class__"}, {})).code == "sandbox_refused"


async def test_parts_of_loops(bench: Bench) -> None:
    rounds = {"type": "loop", "loop_step_ids": ["it"], "while_condition": "state.n < 3"}
    assert (await bench.done(rounds, {"n": 2}, part="condition")).output is True
    assert (await bench.done(rounds, {"n": 3}, part="condition")).output is False
    items = {"type": "loop", "loop_step_ids": ["it"], "for_each": "state.rows"}
    assert (await bench.done(items, {"rows": [1, {"a": 2}]}, part="items")).output == [1, {"a": 2}]
    for wrong in ({}, {"rows": "abc"}, {"rows": {"a": 1}}, {"rows": 5}):
        failed = await bench.failed(items, wrong, part="items")
        assert failed.code == "expression_error"
        assert "must return a list" in failed.message
    many = {"type": "loop", "loop_step_ids": ["it"], "for_each": "[0] * 100_001"}
    assert (await bench.failed(many, part="items")).code == "too_many_items"


async def test_print(bench: Bench) -> None:
    state = {"user": {"name": "Ann"}, "xs": [1]}
    step = {"type": "print", "print_content": "Hi {state.user.name}: {{xs}}"}
    assert await bench.done(step, state) == Done("Hi Ann: [1]")
    assert bench.emitted("final") == [{"response": "Hi Ann: [1]"}]
    failed = await bench.failed({"type": "print", "print_content": "{state.missing}"}, state)
    assert failed.code == "unknown_placeholder"
    assert "missing" in failed.message


MAKERS = [
    {"id": "d1", "name": "First draft", "type": "llm", "output_key": "one"},
    {"id": "d2", "type": "llm", "output_key": "two"},
]


@pytest.mark.parametrize(
    ("strategy", "merged"),
    [
        ("list", [{"source": "First draft (d1)", "data": "A"}, {"source": "d2 (d2)", "data": {"b": 1}}]),
        ("concat", '[First draft (d1)]:\nA\n\n[d2 (d2)]:\n{"b":1}'),
        ("dict", {"First draft (d1)": "A", "d2 (d2)": {"b": 1}}),
    ],
)
async def test_merge(bench: Bench, strategy: str, merged: Any) -> None:
    step = {"type": "merge", "merge_strategy": strategy, "input_keys": ["one", "absent", "two"]}
    assert (await bench.done(step, {"two": {"b": 1}, "one": "A"}, others=MAKERS)).output == merged


async def test_merge_of_a_key_that_no_step_makes_and_of_one_that_is_named_twice(bench: Bench) -> None:
    step = {"type": "merge", "merge_strategy": "dict", "input_keys": ["one", "user_input", "one"]}
    merged = (await bench.done(step, {"one": 1, "user_input": "hi"}, others=MAKERS)).output
    assert merged == {"First draft (d1)": 1, "user_input": "hi", "First draft (d1) 2": 1}


async def test_merge_without_keys_takes_those_of_the_branches_that_meet_there(bench: Bench) -> None:
    others = [
        {"id": "fan", "type": "parallel", "parallel_branches": [["d1"], ["d2", "d3"]], "next_step_id": "it"},
        {"id": "d1", "type": "llm", "output_key": "one", "next_step_id": "more"},
        {"id": "more", "type": "llm", "output_key": "later", "next_step_id": "it"},
        {"id": "d2", "type": "llm", "output_key": "two"},
        {"id": "d3", "type": "llm"},
        {"id": "apart", "type": "llm", "output_key": "apart"},
    ]
    state = {"two": 2, "one": 1, "later": 3, "apart": 4}
    merged = (await bench.done({"type": "merge"}, state, others=others)).output
    assert [entry["source"] for entry in merged] == ["d1 (d1)", "more (more)", "d2 (d2)"]


async def test_merge_of_nothing_fails(bench: Bench) -> None:
    assert (await bench.failed({"type": "merge", "input_keys": ["one"]}, {})).code == "missing_input"
    assert (await bench.failed({"type": "merge"}, {"one": 1})).code == "missing_input"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', {"a": 1}),
        ("[1, 2]", [1, 2]),
        (' "text" ', "text"),
        ('Here:\n```json\n{"a": 1}\n```\nbye {"b": 2}', {"a": 1}),
        ("```\n[1]\n```\nand\n```json\n[2]\n```", [[1], [2]]),
        ('```python\nx = {}\n```\nthe answer is {"a": {"b": [1]}} as {\'said\'}', {"a": {"b": [1]}}),
        ('as in [1], the rows are [{"a": 1}, {"a": 2}].', [{"a": 1}, {"a": 2}]),
        ("only [1, 2] here", [1, 2]),
        ('broken {"a": } then {"b": "}{"}', {"b": "}{"}),
        ('first {"a": 1}, then {"b": {"c": 2}} and ["d"]', [{"a": 1}, {"b": {"c": 2}}, ["d"]]),
        ('{"a": 1}\n{"a": 2}\n{"a": 3}\n', [{"a": 1}, {"a": 2}, {"a": 3}]),
        ('see [1] and {}: {"a": 1}, {"a": [{"b": 2}]}', [{"a": 1}, {"a": [{"b": 2}]}]),
        ("only [1, 2] and [3] here", [[1, 2], [3]]),
        (" ".join(['{"a": 1}'] * 2000), [{"a": 1}] * 2000),
        ({"already": "there"}, {"already": "there"}),
        ([1], [1]),
        ("nothing here", None),
        ("{not json}", None),
        ('{"a": NaN}', None),
        ("", None),
        (None, None),
        ("[" * 200_000, None),
        ('{"a":' * 5000, None),
    ],
)
async def test_extract_json(bench: Bench, text: Any, found: Any) -> None:
    step = {"type": "extract_json", "input_keys": ["text"]}
    assert (await bench.done(step, {"text": text})).output == found
    assert bench.emitted("final") == [{"response": found}]
    assert len(bench.emitted("step_warning")) == (found is None)
    if found is None:
        assert (await bench.failed({**step, "required": True}, {"text": text})).code == "no_json"


async def test_extract_json_takes_several_keys_the_last_output_or_the_message(bench: Bench) -> None:
    several = {"type": "extract_json", "input_keys": ["a", "gone", "b"]}
    assert (await bench.done(several, {"a": "[1]", "b": '{"c": 2}'})).output == [[1], {"c": 2}]
    assert (await bench.done({"type": "extract_json"}, {"user_input": "[7]"})).output == [7]
    bench.have(history=(PreviousStep("x", "X", "[8]"),))
    assert (await bench.done({"type": "extract_json"}, {"user_input": "[7]"})).output == [8]


async def test_task(bench: Bench) -> None:
    bench.task_result = {"shipped": True}
    step = {"type": "task", "task": "ship", "arguments": {"order": "{state.order}", "note": "for {{who}}"}}
    state = {"order": {"id": 1}, "who": "Ann"}
    assert await bench.done(step, state, path="loop/2/it") == Done({"shipped": True})
    assert bench.task_calls == [("ship", {"order": {"id": 1}, "note": "for Ann"}, "loop/2/it")]
    failed = await bench.failed({"type": "task", "task": "shop"})
    assert failed.code == "unknown_task"
    assert 'did you mean "ship"' in failed.message


@pytest.mark.parametrize(
    ("raised", "code", "retryable"),
    [
        (Fail("for good"), "failed", False),
        (Retry(5, "later"), "retry", True),
        (Unavailable("away"), "unavailable", True),
        (InvalidInput("no"), "invalid_input", False),
        (TimeoutError(), "timeout", True),
        (ValueError("odd"), "task_error", True),
        (KeyError("k"), "task_error", True),
    ],
)
async def test_an_exception_of_a_task_fails_the_step(
    bench: Bench, raised: Exception, code: str, retryable: bool
) -> None:
    bench.task_result = raised
    failed = await bench.failed({"type": "task", "task": "ship"})
    assert (failed.code, failed.retryable) == (code, retryable)
    assert failed.message


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), LeaseLost()])
async def test_interruptions_pass_through(bench: Bench, raised: BaseException) -> None:
    bench.task_result = raised
    with pytest.raises(type(raised)):
        await bench.perform({"type": "task", "task": "ship"})


async def test_a_performer_that_breaks_fails_its_step_only(bench: Bench) -> None:
    async def broken(_type: str, _data: Any) -> None:
        raise RuntimeError("x" * 10_000)

    bench.have(emit_event=broken)
    failed = await bench.failed({"type": "print", "print_content": "x"})
    assert (failed.code, failed.retryable) == ("step_error", False)
    assert failed.message.startswith("RuntimeError: xxx")
    assert len(failed.message) == 4000


@pytest.mark.parametrize(
    "step",
    [
        {"type": "end"},
        {"type": "parallel", "parallel_branches": [["it"]]},
        {"type": "orchestration", "orchestration_id": "x"},
        {"type": "loop", "loop_step_ids": ["it"], "loop_count": 2},
    ],
)
async def test_steps_that_the_machine_handles_are_not_performed(bench: Bench, step: Any) -> None:
    assert (await bench.failed(step)).code == "step_error"


async def waiting(bench: Bench, step: Any, state: Any = None) -> StepWait:
    outcome = await perform_step(bench.context(bench.pending(step, state)))
    assert isinstance(outcome, StepWait)
    return outcome


async def test_human(bench: Bench) -> None:
    bench.have(history=(PreviousStep("a", "A", "the last output"),))
    step: dict[str, Any] = {
        "type": "human",
        "human_prompt": "Publish {state.title}?",
        "human_fields": [{"key": "ok", "type": "boolean"}],
        "input_keys": ["empty", "draft", "other"],
        "expires_after_seconds": 60,
        "human_channel_id": "desk",
    }
    wait = await waiting(bench, step, {"title": "News", "empty": "", "draft": "text", "other": 1})
    assert (wait.kind, wait.prompt, wait.context) == (WaitKind.HUMAN, "Publish News?", "text")
    assert (wait.due_in_seconds, wait.until, wait.event, wait.channel_id) == (60, None, None, "desk")
    assert [field.name for field in wait.fields] == ["ok"]
    plain = await waiting(bench, {"type": "human"})
    assert (plain.prompt, plain.fields, plain.context, plain.due_in_seconds) == ("", (), "the last output", None)
    assert (await bench.failed({"type": "human", "human_prompt": "{state.gone}"})).code == "unknown_placeholder"


async def test_wait(bench: Bench) -> None:
    timer = await waiting(bench, {"type": "wait", "seconds": 5})
    assert (timer.kind, timer.due_in_seconds, timer.until) == (WaitKind.TIME, 5, None)
    event = await waiting(bench, {"type": "wait", "event": "paid", "expires_after_seconds": 9})
    assert (event.kind, event.event, event.due_in_seconds) == (WaitKind.EVENT, "paid", 9)
    for text, state in {
        "2026-01-31T09:00:00+01:00": {},
        "2026-01-31T08:00:00Z": {},
        "{state.when}": {"when": "2026-01-31 08:00"},
    }.items():
        moment = (await waiting(bench, {"type": "wait", "until": text}, state)).until
        assert moment == datetime(2026, 1, 31, 8, tzinfo=UTC)
    for wrong in ("tomorrow", "2026-13-01", "{state.n}", "0001-01-01T00:00:00+14:00"):
        assert (await bench.failed({"type": "wait", "until": wrong}, {"n": 5})).code == "bad_time"
