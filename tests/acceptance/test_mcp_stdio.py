"""`runlane mcp`: the SDK's own client starts it, on a database and as a relay to a server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from tests.acceptance.api.mcp_clients import Notes, tool_names, value_of
from tests.harness import eventually
from tests.server_process import ServerProcess, command, environment

TASKS = """
import asyncio
from pathlib import Path
from runlane import App, Context

app = App()

@app.task(expose="mcp")
async def guard(ctx: Context, until: str) -> str:
    "Watch until a file exists."
    number = 0
    while not await asyncio.to_thread(Path(until).exists):
        number += 1
        await ctx.log(f"line {number}")
        await asyncio.sleep(0.02)
    return f"relieved in attempt {ctx.attempt}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@asynccontextmanager
async def stdio_client(folder: Path, *arguments: str, **variables: str) -> AsyncGenerator[Client]:
    """Start `runlane mcp` as MCP clients do."""
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "runlane", "mcp", *arguments],
        cwd=folder,
        env=environment(RUNLANE_SILENCE_SECONDS="0.2", RUNLANE_REAPER_SECONDS="0.1", **variables),
    )
    async with Client(parameters) as client:
        yield client


async def test_a_run_survives_the_process_that_started_it(folder: Path) -> None:
    notes = Notes()
    async with stdio_client(folder, "--app", "tasks:app", "--worker") as client:
        assert {"guard", "start_run", "cancel_run"} <= await tool_names(client)
        call = client.call_tool("guard", {"until": str(folder / "relief")}, progress_callback=notes)
        calling = asyncio.create_task(call)
        await eventually(lambda: len(notes.numbers) > 3, "progress of the run")
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    run_id = notes.run_id
    (folder / "relief").touch()
    async with stdio_client(folder, "--app", "tasks:app", "--worker") as client:
        ended = value_of(await client.call_tool("follow_run", {"run_id": run_id, "wait_seconds": 120}))
        assert (ended["status"], ended["result"][:8]) == ("completed", "relieved")
        parts = (await client.read_resource("workers/status")).contents
        assert [part.mime_type for part in parts] == ["application/json", "text/plain"]
    async with stdio_client(folder, "--read-only") as client:
        names = await tool_names(client)
        assert "get_run" in names
        assert not names & {"guard", "start_run", "cancel_run", "answer_run", "retry_run"}
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("cancel_run", {"run_id": run_id})
        assert value_of(await client.call_tool("get_run", {"run_id": run_id}))["status"] == "completed"


async def test_a_relay_serves_a_server_with_the_permissions_of_its_key(folder: Path) -> None:
    database = {"RUNLANE_DATABASE_URL": f"sqlite:///{folder / 'runlane.db'}"}
    keys: dict[str, str] = {}
    for role in ("operator", "viewer"):
        made = await asyncio.to_thread(command, folder, "keys", "create", role, "--role", role, "--json", **database)
        keys[role] = json.loads(made.stdout)["key"]
    server = ServerProcess(folder, database, "serve", "tasks:app", "--worker")
    await asyncio.to_thread(server.wait_ready)
    try:
        remote = {"RUNLANE_URL": server.url}
        async with stdio_client(folder, **remote, RUNLANE_API_KEY=keys["operator"]) as client:
            notes = Notes()
            (folder / "relief").touch()
            until = {"until": str(folder / "relief"), "idempotency_key": "watch-1"}
            called = value_of(await client.call_tool("guard", until, progress_callback=notes))
            assert (called["status"], notes.run_id) == ("completed", called["run_id"])
            again = value_of(await client.call_tool("guard", until))
            assert (again["run_id"], again["replayed"]) == (called["run_id"], True)
            assert (await client.list_resources()).resources
            with pytest.raises(MCPError, match="does not exist"):
                await client.read_resource("runlane://runs/run_none")
        async with stdio_client(folder, **remote, RUNLANE_API_KEY=keys["viewer"]) as client:
            assert not await tool_names(client) & {"guard", "start_run"}
        refused = await asyncio.to_thread(command, folder, "mcp", **remote, RUNLANE_API_KEY="sk-rl-wrong")
        assert refused.returncode == 1
        assert "cannot be used" in refused.stderr
        mixed = await asyncio.to_thread(command, folder, "mcp", "--worker", **remote)
        assert (mixed.returncode, "RUNLANE_DATABASE_URL" in mixed.stderr) == (1, True)
    finally:
        await asyncio.to_thread(server.stop)
