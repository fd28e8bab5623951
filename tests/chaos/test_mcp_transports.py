"""The MCP SDK's own client over both transports, behind two replicas without sticky sessions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from runlane.domain.access import Permission
from runlane.store.access.keys import create_key
from runlane.store.access.roles import set_role
from tests.acceptance.api.mcp_clients import Notes, mcp_client, tool_names, value_of
from tests.chaos.balancer import Balancer
from tests.chaos.cluster import Cluster, MakeCluster
from tests.harness import eventually
from tests.scale import scaled
from tests.server_process import environment

CALLS = scaled(20, 100)
CHANGING = {"start_run", "cancel_run", "add_entry", "create_vault"}


@dataclass(frozen=True, slots=True)
class Access:
    """A way to two replicas: over HTTP, or through `runlane mcp` as a process of its own."""

    cluster: Cluster
    balancer: Balancer
    transport: str

    @asynccontextmanager
    async def client(self, role: str = "operator") -> AsyncGenerator[Client]:
        key = (await create_key(await self.cluster.app.database(), "test", role, actor="test"))[1]
        if self.transport == "http":
            async with mcp_client(self.balancer.url, key) as client:
                yield client
            return
        relay = StdioServerParameters(
            command=sys.executable,
            args=["-m", "runlane", "mcp"],
            cwd=self.cluster.folder,
            env=environment(RUNLANE_URL=self.balancer.url, RUNLANE_API_KEY=key),
        )
        async with Client(relay) as client:
            yield client


@pytest.fixture(params=["http", "stdio"])
async def access(request: pytest.FixtureRequest, make_cluster: MakeCluster) -> AsyncGenerator[Access]:
    cluster = await make_cluster("postgres")
    await cluster.start_workers(1, concurrency=CALLS)
    async with Balancer(await cluster.start_servers(2)) as balancer:
        yield Access(cluster, balancer, request.param)


async def test_a_client_lists_calls_is_cut_off_and_reads_the_result(access: Access) -> None:
    notes, again = Notes(), Notes()
    arguments = {"kind": "task", "name": "gated", "input": {"gate": "go"}, "wait_seconds": 600}
    async with access.client() as client:
        assert await tool_names(client) >= {*CHANGING, "follow_run", "get_run"}
        assert "runlane://lanes" in {resource.uri for resource in (await client.list_resources()).resources}
        calling = asyncio.create_task(client.call_tool("start_run", arguments, progress_callback=notes))
        await access.cluster.running()
        await eventually(lambda: notes.run_id is not None, "the first progress notification")
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    async with access.client() as client:
        status = value_of(await client.call_tool("get_run", {"run_id": notes.run_id}))["status"]
        follow = {"run_id": notes.run_id, "wait_seconds": 600}
        following = asyncio.create_task(client.call_tool("follow_run", follow, progress_callback=again))
        await eventually(lambda: again.run_id is not None, "a progress notification after the reconnect")
        access.cluster.open_gate("go")
        ended = value_of(await following)
    assert (status, ended["status"], again.run_id) == ("running", "completed", notes.run_id)
    assert len(await access.cluster.rows("select id from runs")) == 1
    assert set(access.balancer.used) == {0, 1}, "a replica was not used"


async def test_a_key_without_permission_sees_neither_tool_nor_resource(access: Access) -> None:
    database = await access.cluster.app.database()
    await set_role(database, "nothing", [Permission.AUDIT_READ.value], actor="test")
    async with access.client("viewer") as client:
        assert not await tool_names(client) & CHANGING
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("start_run", {"kind": "task", "name": "gated"})
    async with access.client("nothing") as client:
        assert await tool_names(client) == set()
        assert (await client.list_resources()).resources == []
        with pytest.raises(MCPError, match="No resource"):
            await client.read_resource("runlane://lanes")
    assert await access.cluster.rows("select id from runs") == []


async def test_concurrent_calls_each_get_their_own_result(access: Access) -> None:
    notes = [Notes() for _ in range(CALLS)]
    arguments = {"kind": "task", "name": "gated", "input": {"gate": "go"}, "wait_seconds": 600}
    async with access.client() as client, asyncio.TaskGroup() as group:
        calls = [
            group.create_task(
                client.call_tool(
                    "start_run", arguments | {"idempotency_key": f"call-{number}"}, progress_callback=notes[number]
                )
            )
            for number in range(CALLS)
        ]
        await access.cluster.running(CALLS)
        access.cluster.open_gate("go")
    values = [value_of(call.result()) for call in calls]
    assert {value["status"] for value in values} == {"completed"}
    assert len({value["run_id"] for value in values}) == CALLS
    assert [note.run_id for note in notes] == [value["run_id"] for value in values]
    assert len(await access.cluster.rows("select id from runs")) == CALLS
    assert set(access.balancer.used) == {0, 1}, "a replica was not used"
    await access.cluster.check_story()
