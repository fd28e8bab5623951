"""Whether recorded steps fit another version: what continues, and what is refused with the step and the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runlane.definitions.schema.definition import Agent, Definition, Orchestration
from runlane.orchestration.repair import Misfit, find_misfit
from runlane.store.orchestration.steps import StepOutcome, StepRecord

REQUEST: dict[str, Any] = {"message": "hello", "input": {}}


def say(step_id: str, then: str | None, **more: Any) -> dict[str, Any]:
    fields = {"id": step_id, "type": "print", "print_content": step_id, "next_step_id": then, "output_key": step_id}
    return {**fields, **more}


def flow(*steps: dict[str, Any], **more: Any) -> dict[str, Definition]:
    body = {"id": "flow", "name": "Flow", "steps": list(steps), **more}
    return {"orchestration:flow": Orchestration.model_validate(body)}


def done(*paths: str, kind: str = "print", outcome: StepOutcome = StepOutcome.DONE) -> list[StepRecord]:
    return [
        StepRecord(path, no, path.rpartition("/")[2].partition("#")[0], kind, outcome, output=json.dumps(path))
        for no, path in enumerate(paths, start=1)
    ]


def misfit(
    old: dict[str, Definition], new: dict[str, Definition], records: list[StepRecord], **plan: Any
) -> Misfit | None:
    return find_misfit("orchestration:flow", REQUEST, plan, old, new, records)


LINE = flow(say("a", "b"), say("b", "c"), say("c", None))


def test_changes_after_the_recorded_steps_fit() -> None:
    new = flow(say("a", "b"), say("b", "x", name="Other"), say("x", None, timeout_seconds=7))
    assert misfit(LINE, new, done("a", "b")) is None


def test_the_failed_step_itself_may_change_in_every_way() -> None:
    records = [*done("a"), *done("b", outcome=StepOutcome.FAILED)]
    assert misfit(LINE, flow(say("a", None)), records) is None
    assert misfit(LINE, flow(say("a", "b"), {"id": "b", "type": "end"}), records) is None


def test_a_changed_prompt_of_a_finished_step_fits() -> None:
    assert misfit(LINE, flow(say("a", "b", print_content="other"), say("b", None)), done("a")) is None


def test_a_missing_step_is_named() -> None:
    found = misfit(LINE, flow(say("a", "c"), say("c", None)), done("a", "b"))
    assert found == Misfit("b", "b", 'The step "b" does not exist any more.')


def test_another_type_is_named() -> None:
    changed = {"id": "b", "type": "transform", "transform_code": "result = 1", "next_step_id": None}
    found = misfit(LINE, flow(say("a", "b"), changed), done("a", "b"))
    assert found == Misfit("b", "b", 'The step "b" was of type print and is of type transform now.')


def test_a_step_that_is_reached_elsewhere_is_named_with_what_comes_instead() -> None:
    found = misfit(LINE, flow(say("a", "c"), say("b", None), say("c", "b")), done("a", "b"))
    assert found is not None
    assert (found.path, found.reason) == (
        "b",
        'The step "b" is not reached here; the current version continues with c.',
    )
    ended = misfit(LINE, flow(say("a", None), say("b", None)), done("a", "b"))
    assert ended is not None
    assert "has ended before" in ended.reason


def parallel(*branches: list[str]) -> dict[str, Definition]:
    split = {"id": "split", "type": "parallel", "parallel_branches": list(branches), "next_step_id": "end"}
    names = {name for branch in branches for name in branch}
    return flow(split, *(say(name, None) for name in sorted(names)), {"id": "end", "type": "end"})


def test_changed_branches_are_named() -> None:
    old = parallel(["a", "b"], ["c", "d"])
    assert misfit(old, parallel(["a", "b"], ["c", "x"]), done("split/0/a", "split/1/c")) is None
    found = misfit(old, parallel(["b", "a"], ["c", "d"]), done("split/0/a", "split/1/c"))
    assert found == Misfit("split/0/a", "a", 'The branches of the step "split" have changed.')


def loop(*body: str, count: int = 3) -> dict[str, Definition]:
    rounds = {"id": "rounds", "type": "loop", "loop_step_ids": list(body), "loop_count": count, "next_step_id": None}
    return flow(rounds, *(say(name, None) for name in sorted(set(body))))


def test_a_changed_body_of_a_loop_is_named() -> None:
    old = loop("a", "b")
    records = done("rounds/1/a", "rounds/1/b", "rounds/2/a")
    assert misfit(old, old, records) is None
    assert misfit(old, loop("a", "b", count=9), records) is None
    found = misfit(old, loop("b", "a"), records)
    assert found == Misfit("rounds/1/a", "a", 'The body of the loop "rounds" has changed.')


def test_an_output_that_the_new_version_rejects_is_named() -> None:
    typed = flow(say("a", "b"), say("b", None), state_schema={"a": {"type": "integer"}})
    found = misfit(LINE, typed, done("a"))
    assert found is not None
    assert found.path == "a"
    assert 'key "a" is declared as integer' in found.reason


def test_a_change_of_a_forks_state_that_the_new_version_rejects_is_named() -> None:
    typed = flow(say("a", "b"), say("b", None), state_schema={"tone": {"type": "integer"}})
    found = misfit(LINE, typed, done("a"), fork={"edits": [{"no": 1, "state": {"tone": "dry"}}]})
    assert found is not None
    assert "declared as integer" in found.reason


@pytest.mark.parametrize("turns", [1, 9])
def test_an_agent_has_one_step_whatever_it_is_made_of(turns: int) -> None:
    old: dict[str, Definition] = {"agent:helper": Agent.model_validate({"id": "helper"})}
    new: dict[str, Definition] = {"agent:helper": Agent.model_validate({"id": "helper", "max_turns": turns})}
    assert find_misfit("agent:helper", REQUEST, {}, old, new, done("answer", kind="agent")) is None
