"""Orchestrations that are called as tools, in whole runs: a cancel reaches them, their end reaches who waits for it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from runlane import Status
from runlane.definitions.schema.definition import Agent, Definition, Orchestration, Tool
from runlane.domain.run import ChildRun
from runlane.orchestration import children
from runlane.triggers.evaluator import TriggerEvaluator
from tests.harness import eventually
from tests.integration.process import Process
from tests.integration.test_orchestrations import sync

HUMAN = {"id": "ask", "type": "human", "human_prompt": "Go on?", "output_key": "ask"}


def calling(name: str, other: str) -> list[Definition]:
    """An orchestration whose agent calls another one as a tool."""
    agent = {
        "id": f"agent_{name}",
        "model": "scripted",
        "tools": [f"call_{other}"],
        "answers": [{"tool": f"call_{other}", "arguments": {"message": "go"}}, "done"],
    }
    step = {"id": "work", "type": "agent", "agent_id": agent["id"], "output_key": "work"}
    return [
        Orchestration.model_validate({"id": name, "steps": [step]}),
        Agent.model_validate(agent),
        Tool.model_validate({"name": f"call_{other}", "tool_type": "orchestration", "orchestration_id": other}),
    ]


FAMILY = [
    *calling("outer", "middle"),
    *calling("middle", "inner"),
    Orchestration.model_validate({"id": "inner", "steps": [HUMAN]}),
]


async def family(process: Process) -> list[str]:
    """Three runs, each waiting for the next, the last one for a person."""
    await process.start()
    await sync(process, *FAMILY)
    ids = [(await process.app.orchestrate("outer", "go")).run_id]
    store = await process.store()

    async def next_one(target: str) -> str | None:
        rows = await store.sql("select id from runs where target = :target", target=f"orchestration:{target}")
        return rows[0]["id"] if rows else None

    ids += [await eventually(lambda name=name: next_one(name), f"a run of {name}") for name in ("middle", "inner")]
    await eventually(lambda: has(process, ids[-1], Status.PAUSED), "the question")
    return ids


async def has(process: Process, run_id: str, status: Status) -> bool:
    return (await process.app.get(run_id)).status is status


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parents give their worker back at once, and do not come again by themselves."""
    monkeypatch.setattr(children, "_HOLD_SECONDS", 0.0)

    def later(age_seconds: float) -> float:
        return age_seconds + 3600.0

    monkeypatch.setattr(children, "_later_seconds", later)


@pytest.mark.parametrize("waiting", [False, True], ids=["running", "paused"])
async def test_a_cancel_reaches_children_and_grandchildren(
    waiting: bool, process: Process, request: pytest.FixtureRequest
) -> None:
    if waiting:
        request.getfixturevalue("impatient")
    ids = await family(process)
    if waiting:
        for run_id in ids:
            await eventually(lambda run_id=run_id: has(process, run_id, Status.PAUSED), "every run to wait")
    await process.app.cancel(ids[0])
    for run_id in ids:
        assert (await process.end(run_id)).status is Status.CANCELLED
        await (await process.store()).check_stream(run_id)


@pytest.mark.usefixtures("impatient")
async def test_an_answer_to_the_last_child_wakes_every_waiting_parent(process: Process) -> None:
    ids = await family(process)
    for run_id in ids:
        await eventually(lambda run_id=run_id: has(process, run_id, Status.PAUSED), "every run to wait")
    await process.app.resume(ids[-1], "yes")
    for run_id in ids:
        assert (await process.end(run_id)).status is Status.COMPLETED
    for run_id, child_id in pairwise(ids):
        parent = await process.app.get(run_id)
        child = await process.app.get(child_id)
        assert child.parent == {"run_id": run_id, "path": "work#0/0/call_0"}
        assert parent.children == (ChildRun(child_id, child.target, Status.COMPLETED, "work#0/0/call_0"),)
    assert [(await process.app.get(run_id)).attempt for run_id in ids] == [2, 2, 2]


@pytest.mark.usefixtures("impatient")
async def test_a_waiting_parent_sees_that_its_child_was_cancelled(process: Process) -> None:
    ids = await family(process)
    for run_id in ids:
        await eventually(lambda run_id=run_id: has(process, run_id, Status.PAUSED), "every run to wait")
    await process.app.cancel(ids[-1])
    outer: Any = await process.end(ids[0])
    assert (outer.status, outer.result) == (Status.COMPLETED, "done")
    rows = await (await process.store()).sql(
        "select payload from run_calls where run_id = :id and kind = 'tool'", id=ids[1]
    )
    assert "orchestration_failed" in rows[0]["payload"]
    assert "cancelled" in rows[0]["payload"]


async def test_the_end_of_a_child_belongs_to_the_chain_of_triggers_of_its_parent(process: Process) -> None:
    """Otherwise a trigger for the end of a child that the triggered run calls would start runs without end."""
    await process.start()
    leaf = Orchestration.model_validate({"id": "leaf", "steps": [{"id": "say", "type": "print", "print_content": "x"}]})
    start = {"orchestration_id": "outer", "message": "go"}
    first = {"id": "first", "event": "start", **start}
    again = {"id": "again", "event": "run.completed", "run_target": "orchestration:leaf", **start}
    await sync(process, *calling("outer", "leaf"), leaf)
    await process.app.sync({"triggers": [first, again]})
    evaluator = TriggerEvaluator(process.app.settings, await process.app.connect(), process.app.tasks)
    store = await process.store()
    await process.app.broadcast("start")

    async def depths() -> list[int]:
        while await evaluator.run_once():
            pass
        rows = await store.sql("select depth from stored_events where name = 'run.completed' order by id")
        return [row["depth"] for row in rows]

    async def three() -> bool:
        return len(await depths()) >= 3

    await eventually(three, "three ends of the child")
    await evaluator.stop()
    assert (await depths())[:3] == [1, 2, 3]


async def test_parents_whose_child_is_debounced_wait_for_the_same_run(process: Process) -> None:
    await process.start()
    rules = {"debounce": {"delay_seconds": 600.0}}
    say = [{"id": "say", "type": "print", "print_content": "said"}]
    leaf = Orchestration.model_validate({"id": "leaf", "flow_control": rules, "steps": say})
    await sync(process, *calling("outer", "leaf"), leaf)
    store = await process.store()
    ids = [(await process.app.orchestrate("outer", "go")).run_id for _ in range(2)]

    async def both() -> bool:
        return [row["starts"] for row in await store.sql("select starts from flow_keys")] == [2]

    await eventually(both, "both starts of the child")
    await store.make_due()
    assert {(await process.end(run_id)).status for run_id in ids} == {Status.COMPLETED}
    rows = await store.sql("select id from runs where target = 'orchestration:leaf'")
    children_of = [(await process.app.get(run_id)).children for run_id in ids]
    assert [[child.run_id for child in found] for found in children_of] == [[row["id"] for row in rows]] * 2
