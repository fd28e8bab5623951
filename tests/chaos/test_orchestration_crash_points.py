"""A crash at every commit of an orchestration that asks a person: it still ends, and pays for no step twice.

The run goes through branches, a loop, a question and a nested orchestration. One worker after the other dies at a
commit of a kind, or right before it, until one comes to the end; each gets the run a little further.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from runlane import Status
from runlane.testing.crash_points import CrashPoint
from tests.chaos.cluster import TASKS, Cluster, Process, eventually
from tests.chaos.flows import Flows, Steps, ask, fan, human, in_a_row, say

# The reach at which each worker but the first dies: the first that leaves the run further than it was. Records are
# also stored for what begins and happens inside a step, so there each worker lives for one record more (0).
POINTS = {
    "claim.before_commit": 2, "claim.committed": 2, "step.before_commit": 2, "step.committed": 1,
    "record.before_commit": 0, "record.committed": 0, "finish.before_commit": 2, "finish.committed": 1,
}  # fmt: skip
PAID = {"a", "b", "b2", "first", "last", "inside"}
INNER = {"id": "inner", "steps": in_a_row(ask("inside"), say("out", "inner {state.inside}"))}


def flow() -> list[Steps]:
    loop = {"id": "loop", "type": "loop", "loop_count": 2, "loop_step_ids": ["round"], "next_step_id": "sub"}
    nested = {"id": "sub", "type": "orchestration", "orchestration_id": "inner", "output_key": "sub"}
    return [
        ask("first", next_step_id="split"),
        *fan([human("q")], [ask("a")], [ask("b"), ask("b2")], after=say("join", next_step_id="loop")),
        loop,
        say("round"),
        {**nested, "next_step_id": "last"},
        ask("last"),
    ]


async def answered(flows: Flows, run_id: str) -> None:
    """A person who answers as soon as the run has paused."""
    await flows.has(run_id, Status.PAUSED, Status.FAILED)
    await flows.cluster.app.resume(run_id, {"decision": "approve"})


async def ends_or_dies(cluster: Cluster, worker: Process) -> bool:
    """Return whether every run has ended; False when the worker died before."""

    async def over() -> str | None:
        await cluster.skip_waits()
        if not worker.alive:
            return "died"
        return "ended" if await cluster.count("ended_at is null") == 0 else None

    return await eventually(over, "the end of the run or of the worker") == "ended"


@pytest.mark.parametrize("point", POINTS)
async def test_workers_die_at(cluster: Cluster, point: str) -> None:
    flows = Flows(cluster)
    await flows.sync({"id": "flow", "steps": flow(), "entry_step_id": "first"}, INNER)
    run_id = (await cluster.app.orchestrate("flow", "m")).run_id
    person = asyncio.create_task(answered(flows, run_id))
    paid: dict[str, int] = {}
    deaths = 0
    while True:
        nth = (POINTS[point] or deaths + 1) if deaths else 1
        worker = cluster.start_worker(crash=CrashPoint(point, nth))
        if await ends_or_dies(cluster, worker):
            break
        assert await worker.ended() == -signal.SIGKILL, worker.log_text()
        deaths += 1
        counts = flows.counts()
        paid |= {step: counts[step] for step in await flows.done(run_id) if step in PAID and step not in paid}
    await asyncio.wait_for(person, 30)
    run = await cluster.app.get(run_id)
    assert run.status is Status.COMPLETED, (deaths, run.error)
    assert run.result == "said"
    # The last worker dies when the run has ended, which is seen before its death or after it.
    assert deaths >= (1 if point == "finish.committed" else 2), "the point was hardly reached"
    counts = flows.counts()
    print(point, "deaths", deaths, dict(counts))
    assert set(counts) == PAID
    # After a death only the calls that were in flight at that moment are repeated, no recorded one.
    assert {step: counts[step] for step in paid} == paid
    assert all(count <= 1 + deaths for count in counts.values())
    if point == "step.committed":
        # No step begins before its predecessor is stored, so in a sequence nothing is in flight then.
        assert (counts["first"], counts["inside"], counts["last"]) == (1, 1, 1)
    await flows.check_once(run_id)
    await cluster.check_story()


@pytest.mark.parametrize("point", ["operate.before_commit", "operate.committed"])
async def test_an_answer_is_stored_whole_or_not_at_all_when_its_process_dies_at(cluster: Cluster, point: str) -> None:
    """The answer is stored whole or not at all."""
    flows = Flows(cluster)
    await cluster.start_workers(1)
    run_id = await flows.start(in_a_row(ask("before"), human("q"), ask("after")))
    await flows.has(run_id, Status.PAUSED)
    code = f"import asyncio, {TASKS} as t; asyncio.run(t.app.resume({run_id!r}, {{'decision': 'approve'}}))"
    person = cluster.start("person", [sys.executable, "-c", code], CrashPoint(point))
    assert await person.ended() == -signal.SIGKILL, person.log_text()
    if point == "operate.before_commit":
        assert (await cluster.app.get(run_id)).status is Status.PAUSED
        await cluster.app.resume(run_id, {"decision": "approve"})
    assert (await cluster.app.wait(run_id, 30)).status is Status.COMPLETED
    assert flows.counts() == {"before": 1, "after": 1}
    await flows.check_once(run_id)
    await cluster.check_story()
