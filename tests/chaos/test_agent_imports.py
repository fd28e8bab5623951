"""A worker whose steps need no provider does not load the provider library, and stays small."""

from __future__ import annotations

import subprocess

from runlane import Status
from runlane.testing.fake_provider import FakeProvider
from tests.chaos.agents import define, environment, start
from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.chaos.flows import in_a_row, say

HEAVY = ["anthropic", "google.genai", "mcp", "openai", "pydantic_ai"]
IDLE_MB = 90
# With an HTTP client, JSON schemas and a sandbox in use.
BUSY_MB = 100


async def loaded(cluster: Cluster) -> list[str]:
    """Return which of the heavy modules the only worker has loaded."""
    run = await cluster.app.enqueue("loaded", {"names": HEAVY})
    return (await cluster.app.wait(run.run_id, 60)).result


async def test_steps_without_a_provider_load_no_provider(make_cluster: MakeCluster) -> None:
    with FakeProvider(["From a provider."]) as provider:
        allow = {"RUNLANE_OUTBOUND_ALLOW": f"127.0.0.1:{provider.port}"}
        cluster = await make_cluster(**environment(provider, **allow))
        cluster.popen = subprocess.Popen
        (worker,) = await cluster.start_workers(1)
        print(f"idle: {worker.resident_mb:.0f} MB")
        assert worker.resident_mb < IDLE_MB
        stats = {"name": "stats", "tool_type": "http", "method": "GET", "url": f"{provider.url}/_stats"}
        steps = in_a_row(
            say("hello"),
            {"id": "count", "type": "transform", "transform_code": "result = 1 + 1", "output_key": "count"},
            {"id": "check", "type": "if_else", "if_condition": "state['count'] == 2", "if_true_step_id": "fetch"},
            {"id": "fetch", "type": "tool", "forced_tool": "stats", "arguments": {}, "output_key": "fetch"},
            {
                "id": "scripted",
                "type": "agent",
                "agent_id": "helper",
                "model": "scripted:script",
                "output_key": "script",
            },
        )
        answers = {"script": [{"tool": "stats"}, "As it was written."]}
        await define(cluster, steps, agent={"tools": ["stats"]}, tools=[stats], answers=answers)
        for run_id in await start(cluster, 5):
            run = await cluster.app.wait(run_id, 60)
            assert (run.status, run.result) == (Status.COMPLETED, "As it was written."), run.error
        assert await loaded(cluster) == []
        print(f"busy: {worker.resident_mb:.0f} MB")
        assert worker.resident_mb < BUSY_MB
        # The same question has another answer once a provider was asked.
        await define(cluster, [{"id": "ask", "type": "agent", "agent_id": "helper", "output_key": "ask"}])
        (run_id,) = await start(cluster)
        assert (await cluster.app.wait(run_id, 60)).result == "From a provider."
        assert {"openai", "pydantic_ai"} <= set(await loaded(cluster))


async def test_a_fresh_worker_loads_what_its_definitions_need_before_the_first_run(make_cluster: MakeCluster) -> None:
    with FakeProvider(["From a provider."]) as provider:
        cluster = await make_cluster(**environment(provider))
        cluster.popen = subprocess.Popen
        await define(cluster, [{"id": "ask", "type": "agent", "agent_id": "helper", "output_key": "ask"}])
        await cluster.start_workers(1)

        async def warm() -> bool:
            return {"openai", "pydantic_ai"} <= set(await loaded(cluster))

        await eventually(warm, "the modules of the provider")
        assert provider.stats()["calls"] == 0
        assert not {"anthropic", "google.genai", "mcp"} & set(await loaded(cluster)), "nothing needs these"
        assert await cluster.events("worker_lost") == []
