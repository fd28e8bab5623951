"""Bounds of what steps render and return: refused while it is counted, with the step, the limit and the setting."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from runlane.steps.context import PreviousStep
from runlane.steps.dispatch import Suspended, perform_step
from runlane.steps.memory_budget import MemoryTimeout
from tests.unit.step_bench import Bench

LIMIT = 10_000
LARGE = "x" * 6000
TWICE = "{{big}}{{big}}"


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    made.have(max_step_bytes=LIMIT)
    yield made
    await made.services.sandbox.close()


def model(**fields: Any) -> dict[str, Any]:
    return {"type": "llm", "model": "scripted", **fields}


@pytest.mark.parametrize(
    "step",
    [
        {"type": "print", "print_content": TWICE},
        {"type": "human", "human_prompt": TWICE},
        {"type": "wait", "until": TWICE},
        {"type": "task", "task": "ship", "arguments": {"a": "{{big}}", "b": ["{{big}}"]}},
        {"type": "tool", "forced_tool": "ship", "arguments": {"a": "{{big}}", "b": "{{big}}"}},
        {"type": "merge", "input_keys": ["big", "big"]},
        {"type": "merge", "input_keys": ["big", "big"], "merge_strategy": "list"},
        {"type": "merge", "input_keys": ["big", "big"], "merge_strategy": "concat"},
        {"type": "extract_json", "input_keys": ["json", "json"]},
        model(prompt_template=TWICE),
        model(input_keys=["big"] * 3),
        {"type": "evaluator", "model": "scripted", "evaluator_prompt": TWICE, "route_map": {"a": None}},
    ],
    ids=lambda step: step["type"],
)
async def test_a_rendered_string_has_a_bound(bench: Bench, step: dict[str, Any]) -> None:
    state = {"big": LARGE, "json": {"a": LARGE}}
    failed = await bench.failed(step, state, answers={"it": ["a"]})
    assert (failed.code, failed.retryable) == ("template_too_large", False)
    for part in ('Step "it"', f"{LIMIT} bytes", "RUNLANE_MAX_STEP_BYTES"):
        assert part in failed.message
    assert bench.events == []
    assert bench.task_calls == []


async def test_bytes_count_and_not_characters(bench: Bench) -> None:
    step = {"type": "print", "print_content": "{{big}}"}
    assert (await bench.done(step, {"big": "x" * LIMIT})).output == "x" * LIMIT
    assert (await bench.failed(step, {"big": "é" * (LIMIT // 2 + 1)})).code == "template_too_large"


@pytest.mark.parametrize("result", ["x" * (LIMIT + 1), {"a": ["é" * LIMIT]}, [1] * LIMIT])
async def test_the_output_of_a_task_has_a_bound(bench: Bench, result: Any) -> None:
    bench.task_result = result
    failed = await bench.failed({"type": "task", "task": "ship"})
    assert (failed.code, failed.retryable) == ("output_too_large", False)
    for part in ('step "it"', f"at most {LIMIT}", "RUNLANE_MAX_STEP_BYTES"):
        assert part in failed.message


async def test_an_answer_of_a_model_has_a_bound(bench: Bench) -> None:
    failed = await bench.failed(model(), answers={"it": ["x" * (LIMIT + 1)]})
    assert failed.code == "output_too_large"


async def test_tool_results_of_an_agent_count_together(bench: Bench) -> None:
    calls: list[dict[str, Any]] = [{"tool": "ship", "arguments": {}} for _ in range(9)]
    agent: dict[str, Any] = {"id": "a", "model": "scripted", "tools": ["ship"], "answers": [*calls, "done"]}
    bench.have(agents=[agent])
    bench.task_result = "x" * (LIMIT - 2)
    failed = await bench.failed({"type": "agent", "agent_id": "a"})
    assert failed.code == "prompt_too_large"
    assert f"at most {4 * LIMIT}" in failed.message
    assert len(bench.task_calls) == 5


async def test_earlier_outputs_are_in_the_bound_of_a_prompt(bench: Bench) -> None:
    bench.have(history=[PreviousStep(f"s{number}", "S", LARGE) for number in range(3)])
    step = model(include_full_history=True)
    assert (await bench.failed(step, answers={"it": ["x"]})).code == "template_too_large"


class Full:
    """Room that others have taken."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def take(self, size: int, /) -> None:
        self.asked.append(size)
        raise MemoryTimeout("All is taken.", 3.0)


async def test_a_step_without_room_waits_and_holds_no_slot(bench: Bench) -> None:
    room = Full()
    bench.have(memory=room)
    pending = bench.pending({"type": "print", "print_content": "{{word}}!"}, {"word": "ß" * 10})
    held = await perform_step(bench.context(pending))
    assert isinstance(held, Suspended)
    assert [(wait.kind, wait.prompt, wait.due_in_seconds) for wait in held.waits] == [("time", "All is taken.", 3.0)]
    assert room.asked == [21]
    assert bench.events == []
