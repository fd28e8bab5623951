"""Long runs: the ten-thousandth step costs what the first one did."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from runlane.definitions.schema.definition import Orchestration
from runlane.interpreter.machine import Machine
from runlane.interpreter.values import Done, EndStatus
from tests.scale import scaled
from tests.unit.interpreter.play import StepData, if_else, loop, orchestration, say

ROUNDS = scaled(4_000, 10_000)
THOUSAND = 1_000
BALLAST = {f"key{number}": ["x" * 100] * 20 for number in range(200)}


def long_loop(**fields: Any) -> Orchestration:
    body: list[StepData] = [loop("rounds", ["a", "b"], collect=False, **fields), say("a"), say("b", output_key="a")]
    return orchestration(*body, max_total_turns=10_000_000)


def cycle() -> Orchestration:
    steps = [say("a", "again", max_iterations=1_000_000), if_else("again", yes="a")]
    return orchestration(*steps, max_total_turns=10_000_000)


LONG: dict[str, Callable[[], Orchestration]] = {
    "counted": lambda: long_loop(loop_count=ROUNDS),
    "while": lambda: long_loop(while_condition="x", max_rounds=ROUNDS),
    "for_each": lambda: long_loop(for_each="x", max_concurrency=4),
    "cycle": cycle,
}


def steps_of(machine: Machine, count: int) -> None:
    """Perform `count` steps as a worker does: read the open ones, perform them, complete them."""
    for number in range(count):
        pending = machine.pending_steps()[0]
        output = list(range(ROUNDS)) if pending.part == "items" else f"output {number}"
        machine.complete(pending.path, Done(output))


def started(kind: str) -> Machine:
    definition = LONG[kind]()
    return Machine.start({"main": definition}, "main", BALLAST)


def memory() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("kind", LONG)
def test_memory_does_not_grow(kind: str) -> None:
    machine = started(kind)
    tracemalloc.start()
    try:
        steps_of(machine, THOUSAND)
        before = memory()
        more = ROUNDS - 2 * THOUSAND
        steps_of(machine, more)
        # One pointer per step would be eight bytes.
        assert memory() - before < 6 * more
    finally:
        tracemalloc.stop()
    assert machine.end is None


def calls(work: Callable[[], None]) -> int:
    """Count the function calls: a measure of the time without its noise."""
    count = 0

    def tally(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tally)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("kind", LONG)
def test_the_work_of_a_step_does_not_grow(kind: str) -> None:
    machine = started(kind)
    steps_of(machine, 10)
    first = calls(lambda: steps_of(machine, THOUSAND))
    steps_of(machine, ROUNDS - 3 * THOUSAND)
    last = calls(lambda: steps_of(machine, THOUSAND))
    assert last <= first * 1.01


def test_a_long_loop_ends() -> None:
    machine = started("counted")
    while machine.end is None:
        steps_of(machine, 100)
    assert machine.end.status is EndStatus.COMPLETED
    assert machine.turns == 2 * ROUNDS


def test_a_cursor_of_a_long_loop_is_small() -> None:
    machine = Machine.start({"main": LONG["counted"]()}, "main", {})
    steps_of(machine, ROUNDS)
    assert len(repr(machine.cursor())) < 2_000
