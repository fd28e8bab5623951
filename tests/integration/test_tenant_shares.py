"""Two tenants on one worker: one that uses all it can get does not stop the conditions and tools of the other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane import Status
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.outbound.limits import MAX_CONNECTIONS, TENANT_CONNECTIONS
from runlane.settings import Settings
from runlane.store.access.tenants import create_tenant
from tests.harness import eventually
from tests.integration.http_server import Request, Writer, plain, serving
from tests.integration.process import Process

GREEDY, MODEST = "greedy", "modest"
ENDLESS = "while True: pass\nresult = 1"
LONG: dict[str, Any] = {"id": "long", "steps": [{"id": "it", "type": "transform", "transform_code": ENDLESS}]}
SHORT: dict[str, Any] = {
    "id": "short",
    "steps": [
        {"id": "choose", "type": "if_else", "if_condition": "len(state.user_input) == 3", "if_true_step_id": "count"},
        {"id": "count", "type": "transform", "transform_code": "result = len(state.user_input)", "next_step_id": "use"},
        {"id": "use", "type": "tool", "forced_tool": "double", "arguments": {"n": 3}},
    ],
}
DOUBLE: dict[str, Any] = {"name": "double", "tool_type": "python", "code": "result = args['n'] * 2"}


async def sync(process: Process, tenant: str, **bodies: list[dict[str, Any]]) -> None:
    database = await process.app.database()
    await create_tenant(database, tenant, actor="test")
    await sync_definitions(database, tenant, parse_bodies(bodies), actor="test")


async def all_running(process: Process, run_ids: list[str]) -> bool:
    store = await process.store()
    return all([await store.status(run_id) is Status.RUNNING for run_id in run_ids])


@pytest.mark.settings(sandbox_script_seconds=600)
async def test_long_scripts_of_one_tenant_do_not_stop_the_other(process: Process) -> None:
    await process.start()
    await sync(process, GREEDY, orchestrations=[LONG])
    await sync(process, MODEST, orchestrations=[SHORT], tools=[DOUBLE])
    long = [(await process.app.orchestrate("long", tenant=GREEDY)).run_id for _ in range(4)]
    await eventually(lambda: all_running(process, long))
    run = await process.end((await process.app.orchestrate("short", "abc", tenant=MODEST)).run_id)
    assert (run.status, run.result) == (Status.COMPLETED, 6)
    assert await all_running(process, long)
    for run_id in long:
        await process.app.cancel(run_id)


async def test_a_fan_out_of_one_tenant_leaves_connections_to_the_other(settings: Settings) -> None:
    release = asyncio.Event()
    quick = plain(b"served")

    async def answer(request: Request, writer: Writer) -> None:
        if request.target.startswith("/slow"):
            await release.wait()
        await quick(request, writer)

    async with serving(answer) as server:
        process = Process(settings.model_copy(update={"outbound_allow": f"127.0.0.1:{server.port}"}))

        def slow() -> int:
            return sum(request.target.startswith("/slow") for request in server.requests)

        def call(name: str, count: int) -> dict[str, Any]:
            each = {"id": "each", "type": "loop", "loop_step_ids": ["call"], "for_each": f"list(range({count}))"}
            step = {"id": "call", "type": "tool", "forced_tool": name, "arguments": {"n": "{{index}}"}}
            return {
                "id": "calls",
                "max_total_turns": 1000,
                "steps": [{**each, "max_concurrency": 200}, {**step, "timeout_seconds": 600}],
            }

        def tool(name: str) -> dict[str, Any]:
            return {"name": name, "tool_type": "http", "url": server.url(f"/{name}"), "timeout_seconds": 300}

        try:
            await process.start()
            await sync(process, GREEDY, orchestrations=[call("slow", 200)], tools=[tool("slow")])
            await sync(process, MODEST, orchestrations=[call("quick", 60)], tools=[tool("quick")])
            fan_out = await process.app.orchestrate("calls", tenant=GREEDY)
            await eventually(lambda: slow() == TENANT_CONNECTIONS)
            run = await process.end((await process.app.orchestrate("calls", tenant=MODEST)).run_id)
            assert run.status is Status.COMPLETED
            # All of the other's calls went through while these waited, and no more of them began.
            assert slow() == TENANT_CONNECTIONS < MAX_CONNECTIONS
            release.set()
            assert (await process.end(fan_out.run_id)).status is Status.COMPLETED
            assert slow() == 200
        finally:
            release.set()
            await process.stop()
