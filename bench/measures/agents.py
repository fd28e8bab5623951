"""Agents: tasks of an agent, two answers of a model and one tool each: how many per second, and their processor time.

One worker process with its defaults, with Redis; the runs are there before the lane is opened, and the worker has done
one before, so that no import is counted. Once with scripted answers, once with those of a provider in another process.
The comparison is pydantic-ai's own agent, which does the same in one process and keeps nothing of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from bench.ground import Ground, Place, query, wait_for_rows
from bench.measures import SYSTEMS, Sizes
from bench.process import answer_of, cpu_seconds, running
from bench.samples import Sample
from bench.systems.runlane import RunlaneClient
from runlane.testing import FakeAnswer, FakeCall, FakeProvider

SCRIPTED, ASKED = "scripted model", "fake provider"
CPU = ", CPU"
PEER = "pydantic-ai"
_PATIENCE_SECONDS = 120
_TOOL: dict[str, Any] = {
    "name": "look_up",
    "tool_type": "task",
    "task": "look up",
    "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
}
_CALL = {"tool": "look_up", "arguments": {"key": "a"}}
_ANSWERS = [
    FakeAnswer(calls=[FakeCall(name="look_up", arguments={"key": "a"})]),
    FakeAnswer(text="It is done."),
]


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Per repeat and kind of model: the rate and the processor time of a task, ours and the comparison's."""
    if not sizes.among("runlane"):
        return
    for repeat in range(sizes.repeats):
        with FakeProvider(_ANSWERS) as provider:
            for variant, count in ((SCRIPTED, sizes.agent_tasks), (ASKED, sizes.agent_tasks_asked)):
                url = provider.openai_url if variant == ASKED else ""
                with ground.place() as place:
                    for name, (seconds, cpu) in (
                        ("runlane", await _ours(ground, place, url, count)),
                        (PEER, await _peer(ground, place, url, count)),
                    ):
                        yield Sample("agents", name, variant, repeat, "tasks/s", [count / seconds])
                        yield Sample("agents", name, variant + CPU, repeat, "ms/task", [1000 * cpu / count])


async def _ours(ground: Ground, place: Place, url: str, count: int) -> tuple[float, float]:
    system = SYSTEMS["runlane"](place)
    await system.prepare()
    model = "openai-chat:bench" if url else "scripted"
    agent: dict[str, Any] = {
        "id": "helper",
        "model": model,
        "tools": ["look_up"],
        "system_prompt": "You look things up.",
    }
    if not url:
        agent["answers"] = [_CALL, "It is done."]
    step = {"id": "work", "type": "agent", "agent_id": "helper", "output_key": "said"}
    flow = {"id": "asks", "steps": [step]}
    environment = ground.environment(place, redis=True)
    if url:
        environment |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "a-key-of-the-benchmark"}
    async with system.client() as client:
        assert isinstance(client, RunlaneClient)
        await client.define({"agents": [agent], "tools": [_TOOL], "orchestrations": [flow]})
        with running(system.worker(None), environment, ground.log) as worker:
            await client.begin("asks")
            await wait_for_rows(place.database_url, _ENDED, 1, _PATIENCE_SECONDS)
            await client.close_lane(closed=True)
            await client.begin("asks", count)
            await ground.settle()
            before = cpu_seconds(worker.pid)
            await client.close_lane(closed=False)
            row = await wait_for_rows(place.database_url, _ENDED, count + 1, _PATIENCE_SECONDS)
            cpu = cpu_seconds(worker.pid) - before
    calls = (await query(place.database_url, "select count(*) as n from run_calls where kind in ('model', 'tool')"))[0]
    if calls["n"] != 3 * (count + 1):
        raise RuntimeError(f"{calls['n']} answers and results are recorded, not {3 * (count + 1)}")
    return float(row["last"]) - float(row["first"]), cpu


# The run that warmed the worker up is counted, but the time is that of the others.
_ENDED = """
with ended as (select *, row_number() over (order by ended_at) as place from runs where status = 'completed')
select (select count(*) from ended) as n, min(claimed_at) / 1e6 as first, max(ended_at) / 1e6 as last
from ended where place > 1 or (select count(*) from ended) = 1
"""


async def _peer(ground: Ground, place: Place, url: str, count: int) -> tuple[float, float]:
    command = ["-m", "bench.systems.pydantic_ai", "agents", url, str(count)]
    told = await answer_of(command, ground.environment(place), ground.log, _PATIENCE_SECONDS)
    return float(told["seconds"]), float(told["cpu_seconds"])
