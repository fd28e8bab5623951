"""A worker loads what its runs need, and no more; so it stays small."""

from __future__ import annotations

import subprocess

import pytest

from runlane import Status
from runlane.testing.fake_provider import FakeProvider
from tests.chaos import small_tasks
from tests.chaos.agents import define, environment, start
from tests.chaos.cluster import Cluster, MakeCluster, eventually
from tests.chaos.flows import in_a_row, say

PROVIDERS = ["anthropic", "google.genai", "mcp", "openai", "pydantic_ai"]
# The API, commands of administration, migrations, and what only runs of orchestrations and agents need.
UNUSED = [
    *PROVIDERS,
    "alembic",
    "anyio",
    "attr",
    "cryptography",
    "fastapi",
    "greenlet",
    "http.client",
    "httpx2",
    "jsonschema_rs",
    "opentelemetry",
    "prometheus_client",
    "pydantic_monty",
    "pygments",
    "redis",
    "rich",
    "runlane.agents",
    "runlane.api.routes",
    "runlane.api.schemas",
    "runlane.catalog",
    "runlane.client",
    "runlane.graphs.config_file",
    "runlane.memory.indexing",
    "runlane.memory.service",
    "runlane.orchestration.executor",
    "runlane.steps",
    "runlane.tools",
    "starlette",
    "unittest",
    "uvicorn",
]
# The goal is 80 on an idle machine. The bound is above what differs from one start to the next.
IDLE_MB = 82
# With an HTTP client, JSON schemas and a sandbox in use: 101 when the machine is idle, 104 were seen when it is busy.
BUSY_MB = 108


async def loaded(cluster: Cluster, names: list[str]) -> list[str]:
    """Return which of these modules the only worker has loaded."""
    run = await cluster.app.enqueue("loaded", {"names": names})
    return (await cluster.app.wait(run.run_id, 60)).result


def use_interpreter(cluster: Cluster) -> None:
    """Start workers as an operator does, with an app that imports nothing else."""
    cluster.popen = subprocess.Popen
    cluster.tasks = small_tasks.__name__
    cluster.app.include(small_tasks.app)


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_an_idle_worker_loads_only_what_it_needs(make_cluster: MakeCluster, kind: str) -> None:
    cluster = await make_cluster(kind)
    use_interpreter(cluster)
    (worker,) = await cluster.start_workers(1)
    other = "sqlite3" if kind == "postgres" else "asyncpg"
    assert await loaded(cluster, [*UNUSED, other]) == []
    print(f"idle: {worker.resident_mb:.0f} MB")
    assert worker.resident_mb < IDLE_MB


async def test_steps_without_a_provider_load_no_provider(make_cluster: MakeCluster) -> None:
    with FakeProvider(["From a provider."]) as provider:
        allow = {"RUNLANE_OUTBOUND_ALLOW": f"127.0.0.1:{provider.port}"}
        cluster = await make_cluster(**environment(provider, **allow))
        use_interpreter(cluster)
        (worker,) = await cluster.start_workers(1)
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
        assert await loaded(cluster, PROVIDERS) == []
        print(f"busy: {worker.resident_mb:.0f} MB")
        assert worker.resident_mb < BUSY_MB
        # The same question has another answer once a provider was asked.
        await define(cluster, [{"id": "ask", "type": "agent", "agent_id": "helper", "output_key": "ask"}])
        (run_id,) = await start(cluster)
        assert (await cluster.app.wait(run_id, 60)).result == "From a provider."
        assert {"openai", "pydantic_ai"} <= set(await loaded(cluster, PROVIDERS))


async def test_a_fresh_worker_loads_what_its_definitions_need_before_the_first_run(make_cluster: MakeCluster) -> None:
    with FakeProvider(["From a provider."]) as provider:
        cluster = await make_cluster(**environment(provider))
        use_interpreter(cluster)
        await define(cluster, [{"id": "ask", "type": "agent", "agent_id": "helper", "output_key": "ask"}])
        await cluster.start_workers(1)

        async def warm() -> bool:
            return {"openai", "pydantic_ai"} <= set(await loaded(cluster, PROVIDERS))

        await eventually(warm, "the modules of the provider")
        assert provider.stats()["calls"] == 0
        assert not {"anthropic", "google.genai", "mcp"} & set(await loaded(cluster, PROVIDERS)), "nothing needs these"
        assert await cluster.events("worker_lost") == []
