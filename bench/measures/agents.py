"""Agents: how many agent tasks (two model answers and one tool each) run per second, and their processor time.

One worker process with its defaults, with Redis. The runs are queued before the lane is enabled, and the worker has
executed one before, so that no import is counted. The answers are scripted, or come from a provider in another process.
The comparison is pydantic-ai's own agent, which does the same in one process and stores nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from bench.measures import SYSTEMS, Sizes
from bench.process import cpu_seconds, run_json_program, running
from bench.samples import Sample
from bench.servers import Servers, Workspace, query, wait_for_rows
from bench.systems.runlane import RunlaneClient
from runlane.testing import FakeAnswer, FakeCall, FakeProvider

SCRIPTED, ASKED = "scripted model", "fake provider"
CPU = ", CPU"
PEER = "pydantic-ai"
_TIMEOUT_SECONDS = 120
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


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield per repeat and kind of model the rate and the processor time of a task, for Runlane and its peer."""
    if not sizes.select("runlane"):
        return
    for repeat in range(sizes.repeats):
        with FakeProvider(_ANSWERS) as provider:
            for variant, count in ((SCRIPTED, sizes.agent_tasks), (ASKED, sizes.agent_tasks_asked)):
                url = provider.openai_url if variant == ASKED else ""
                with servers.workspace() as workspace:
                    for name, (seconds, cpu) in (
                        ("runlane", await _runlane(servers, workspace, url, count)),
                        (PEER, await _peer(servers, workspace, url, count)),
                    ):
                        yield Sample("agents", name, variant, repeat, "tasks/s", [count / seconds])
                        yield Sample("agents", name, variant + CPU, repeat, "ms/task", [1000 * cpu / count])


async def _runlane(servers: Servers, workspace: Workspace, url: str, count: int) -> tuple[float, float]:
    system = SYSTEMS["runlane"](workspace)
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
    step = {"id": "work", "type": "agent", "agent_id": "helper", "output_key": "result"}
    flow = {"id": "tasks", "steps": [step]}
    environment = servers.environment(workspace, redis=True)
    if url:
        environment |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "a-key-of-the-benchmark"}
    async with system.client() as client:
        assert isinstance(client, RunlaneClient)
        await client.sync({"agents": [agent], "tools": [_TOOL], "orchestrations": [flow]})
        with running(system.worker(None), environment, servers.log) as worker:
            await client.start_runs("tasks")
            await wait_for_rows(workspace.database_url, _ENDED, 1, _TIMEOUT_SECONDS)
            await client.set_lane_enabled(enabled=False)
            await client.start_runs("tasks", count)
            await servers.checkpoint()
            before = cpu_seconds(worker.pid)
            await client.set_lane_enabled(enabled=True)
            row = await wait_for_rows(workspace.database_url, _ENDED, count + 1, _TIMEOUT_SECONDS)
            cpu = cpu_seconds(worker.pid) - before
    calls = (
        await query(workspace.database_url, "select count(*) as n from run_calls where kind in ('model', 'tool')")
    )[0]
    if calls["n"] != 3 * (count + 1):
        raise RuntimeError(f"{calls['n']} answers and results are recorded, not {3 * (count + 1)}")
    return float(row["last"]) - float(row["first"]), cpu


# The warm-up run is counted, but the time is that of the others.
_ENDED = """
with ended as (select *, row_number() over (order by ended_at) as position from runs where status = 'completed')
select (select count(*) from ended) as n, min(claimed_at) / 1e6 as first, max(ended_at) / 1e6 as last
from ended where position > 1 or (select count(*) from ended) = 1
"""


async def _peer(servers: Servers, workspace: Workspace, url: str, count: int) -> tuple[float, float]:
    command = ["-m", "bench.systems.pydantic_ai", "agents", url, str(count)]
    output = await run_json_program(command, servers.environment(workspace), servers.log, _TIMEOUT_SECONDS)
    return float(output["seconds"]), float(output["cpu_seconds"])
