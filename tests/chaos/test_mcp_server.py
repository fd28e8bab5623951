"""The MCP SDK's own client while processes die: calls on two replicas end, and no run is lost or doubled."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from runlane.store.access.keys import create_key
from tests.acceptance.api.mcp_clients import Notes, mcp_client, value_of
from tests.chaos.cluster import Cluster, MakeCluster
from tests.harness import eventually
from tests.scale import scaled

CALLS = scaled(24, 100)


async def key_of(cluster: Cluster) -> str:
    return (await create_key(await cluster.app.database(), "test", "operator", actor="test"))[1]


@pytest.mark.parametrize("backend", ["postgres", "sqlite"])
async def test_a_worker_killed_during_calls_leaves_every_call_its_result(
    make_cluster: MakeCluster, backend: str
) -> None:
    cluster = await make_cluster(backend)
    key = await key_of(cluster)
    [first] = await cluster.start_workers(1, concurrency=CALLS)
    urls = await cluster.start_servers(2)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        clients = [await stack.enter_async_context(mcp_client(url, key)) for url in urls]
        notes = [Notes() for _ in range(CALLS)]
        arguments = {"kind": "task", "name": "gated", "input": {"gate": "go"}, "wait_seconds": 600}
        calls = [
            group.create_task(
                clients[number % 2].call_tool(
                    "start_run", arguments | {"idempotency_key": f"call-{number}"}, progress_callback=notes[number]
                )
            )
            for number in range(CALLS)
        ]
        await cluster.running(CALLS)
        first.kill()
        await cluster.start_workers(1, concurrency=CALLS)
        # A retried call reaches the same run through the other replica.
        repeated = value_of(
            await clients[1].call_tool("start_run", arguments | {"idempotency_key": "call-0", "wait_seconds": 0})
        )
        cluster.open_gate("go")
    values = [value_of(call.result()) for call in calls]
    assert {value["status"] for value in values} == {"completed"}
    assert len({value["run_id"] for value in values}) == CALLS
    assert repeated["run_id"] == values[0]["run_id"]
    assert [note.run_id for note in notes] == [value["run_id"] for value in values]
    rows = await cluster.rows("select attempt, status from runs")
    assert [(row["attempt"], row["status"]) for row in rows] == [(2, "completed")] * CALLS
    await cluster.check_story()


async def test_a_replica_killed_during_a_call_is_replaced_by_the_other(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster("postgres")
    key = await key_of(cluster)
    await cluster.start_workers(1)
    victim, other = cluster.start_server(), cluster.start_server()
    urls = [await cluster.url_of(victim), await cluster.url_of(other)]
    notes = Notes()
    arguments = {"kind": "task", "name": "gated", "input": {"gate": "go"}, "wait_seconds": 600}
    async with mcp_client(urls[0], key) as client:
        calling = asyncio.create_task(client.call_tool("start_run", arguments, progress_callback=notes))
        await cluster.running()
        # The client names the run to find it again. Without response headers it would fail as a whole instead.
        await eventually(lambda: notes.run_id is not None, "the first progress notification")
        victim.kill()
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    cluster.open_gate("go")
    async with mcp_client(urls[1], key) as client:
        ended = value_of(await client.call_tool("follow_run", {"run_id": notes.run_id, "wait_seconds": 600}))
    assert ended["status"] == "completed"
    assert len(await cluster.rows("select id from runs")) == 1
    await cluster.check_story()
