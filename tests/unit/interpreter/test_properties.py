"""What holds for every orchestration and every outcome."""

from __future__ import annotations

from random import Random
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runlane.definitions.schema.definition import Orchestration
from runlane.interpreter.machine import Machine
from runlane.interpreter.values import EndStatus, Outcome, PendingStep
from tests.scale import scaled
from tests.unit.interpreter.arbitrary import Performer, calm, wild
from tests.unit.interpreter.play import through_json

UNHURRIED = [HealthCheck.too_slow, HealthCheck.data_too_large]
SLOW = settings(max_examples=scaled(50, 150), deadline=None, suppress_health_check=UNHURRIED)
# More than any guard of a wild orchestration lets through.
MANY = 30_000

seeds = st.integers(0, 2**32)


def library_of(orchestrations: list[Orchestration]) -> dict[str, Orchestration]:
    return {each.id: each for each in orchestrations}


def plain(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))


def seen(pending: PendingStep) -> tuple[Any, ...]:
    return (pending.path, pending.part, pending.step.id, pending.tries, pending.delay_seconds, dict(pending.state))


def play(machine: Machine, performer: Performer, choose: Random | None = None) -> list[tuple[str, Outcome]]:
    """Perform open steps, the first or any of them, until the run ends; return the records."""
    records: list[tuple[str, Outcome]] = []
    while machine.end is None:
        pending_steps = machine.pending_steps()
        assert pending_steps, "The run has not ended, and there is nothing to perform."
        assert len(records) < MANY
        pending = pending_steps[0] if choose is None else pending_steps[choose.randrange(len(pending_steps))]
        outcome = performer(pending)
        records.append((pending.path, outcome))
        machine.complete(pending.path, outcome)
    assert machine.pending_steps() == []
    return records


@SLOW
@given(wild(), seeds, st.sampled_from([0, 20, 60]), st.booleans())
def test_every_run_ends_within_its_guards(
    orchestrations: list[Orchestration], seed: int, failures: int, in_order: bool
) -> None:
    library = library_of(orchestrations)
    machine = Machine.start(library, "main", {"user_input": "hello"})
    play(machine, Performer(seed, failures=failures, lasting=True), None if in_order else Random(seed))
    assert machine.turns <= library["main"].max_total_turns
    layer = machine._engine.root.layer
    assert layer.total == sum(layer.sizes.values()), "bytes of something that is gone are still counted"
    assert layer.total <= library["main"].max_state_bytes


@SLOW
@given(wild(), seeds)
def test_an_execution_has_a_path_of_its_own(orchestrations: list[Orchestration], seed: int) -> None:
    performer = Performer(seed, failures=20, lasting=True)
    machine = Machine.start(library_of(orchestrations), "main", {})
    closed: set[str] = set()
    while machine.end is None:
        before = {pending.path: pending for pending in machine.pending_steps()}
        assert closed.isdisjoint(before)
        machine.complete(next(iter(before)), performer(next(iter(before.values()))))
        closed |= before.keys() - {pending.path for pending in machine.pending_steps()}


@SLOW
@given(wild(), seeds)
def test_a_machine_that_is_restored_at_every_step_takes_the_same_route(
    orchestrations: list[Orchestration], seed: int
) -> None:
    library = library_of(orchestrations)
    performer = Performer(seed, failures=20, lasting=True)
    choose = Random(seed)
    live = Machine.start(library, "main", {"user_input": "hello"})
    stored = through_json(live, library)
    while live.end is None:
        assert plain(stored.cursor()) == plain(live.cursor())
        pending_steps = live.pending_steps()
        assert [seen(pending) for pending in stored.pending_steps()] == [seen(pending) for pending in pending_steps]
        pending = pending_steps[choose.randrange(len(pending_steps))]
        outcome = performer(pending)
        assert stored.complete(pending.path, outcome) == live.complete(pending.path, outcome)
        stored = through_json(stored, library)
    assert stored.end == live.end
    assert (stored.turns, stored.tokens, stored.cost_usd) == (live.turns, live.tokens, live.cost_usd)


@SLOW
@given(wild(), seeds, st.data())
def test_stored_records_make_the_same_machine_again(
    orchestrations: list[Orchestration], seed: int, data: st.DataObject
) -> None:
    library = library_of(orchestrations)
    performer = Performer(seed, failures=20, lasting=True)
    first = Machine.start(library, "main", {"user_input": "hello"})
    records = play(first, performer, Random(seed))
    crash = data.draw(st.integers(0, len(records)))
    second = Machine.start(library, "main", {"user_input": "hello"})
    for path, outcome in records[:crash]:
        second.complete(path, outcome)
    # The worker that takes over may choose another order: here it is the same, so all must be the same.
    third = through_json(second, library)
    for path, outcome in records[crash:]:
        assert second.complete(path, outcome) == third.complete(path, outcome)
    assert plain(second.cursor()) == plain(first.cursor()) == plain(third.cursor())
    assert second.end == first.end


@SLOW
@given(calm(), seeds, seeds, seeds)
def test_branches_that_finish_in_any_order_give_the_same_result(
    orchestrations: list[Orchestration], seed: int, one_order: int, other_order: int
) -> None:
    library = library_of(orchestrations)
    performer = Performer(seed, failures=30)
    machines = [Machine.start(library, "main", {"user_input": "hello"}) for _ in range(3)]
    for machine, choose in zip(machines, (None, Random(one_order), Random(other_order)), strict=True):
        play(machine, performer, choose)
    first, *others = machines
    assert first.end is not None
    assert first.end.status is EndStatus.COMPLETED, first.end.error
    for other in others:
        assert other.end == first.end
        assert list(other.state) == list(first.state)
        assert (other.turns, other.tokens, other.cost_usd) == (first.turns, first.tokens, first.cost_usd)


@SLOW
@given(calm(), seeds, seeds, st.data())
def test_a_worker_that_takes_over_may_finish_the_rest_in_another_order(
    orchestrations: list[Orchestration], seed: int, order: int, data: st.DataObject
) -> None:
    library = library_of(orchestrations)
    performer = Performer(seed, failures=30)
    first = Machine.start(library, "main", {})
    records = play(first, performer, Random(order))
    second = Machine.start(library, "main", {})
    for path, outcome in records[: data.draw(st.integers(0, len(records)))]:
        second.complete(path, outcome)
    play(second, performer, Random(order + 1))
    assert second.end == first.end


def test_the_wild_ones_end_in_every_way() -> None:
    """A generator whose runs all fail at once would prove nothing."""
    found: dict[EndStatus, list[int]] = {status: [] for status in EndStatus}

    @settings(max_examples=200, deadline=None, suppress_health_check=UNHURRIED, database=None, derandomize=True)
    @given(wild(), seeds)
    def look(orchestrations: list[Orchestration], seed: int) -> None:
        machine = Machine.start(library_of(orchestrations), "main", {})
        play(machine, Performer(seed, failures=10, lasting=True))
        if machine.end is not None:
            found[machine.end.status].append(machine.turns)

    look()
    for status, turns in found.items():
        assert len(turns) >= 20, status
        assert max(turns) >= 5, status
