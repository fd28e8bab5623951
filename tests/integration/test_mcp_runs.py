"""Whole runs with MCP tools: what is stored of them, when they ask a person, and what is not repeated."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from runlane import Status
from runlane.definitions.schema.definition import Agent, McpServer
from runlane.settings import Settings
from runlane.store.orchestration.calls import read_calls
from runlane.store.orchestration.inbox import InboxFilter, read_inbox
from runlane.testing import FakeMcp
from runlane.testing.crash_points import VARIABLE
from tests import forking
from tests.harness import eventually
from tests.integration.process import Process
from tests.integration.test_agents import STEP, events_of, is_paused
from tests.integration.test_orchestrations import flow, run, sync
from tests.server_process import environment

pytestmark = pytest.mark.settings(outbound_allow="127.0.0.1")


@pytest.fixture(scope="module")
def running() -> Generator[FakeMcp]:
    forking.prepare(forking.MCP)
    with FakeMcp() as fake:
        yield fake


@pytest.fixture
def fake(running: FakeMcp) -> FakeMcp:
    running.start()
    running.control()
    return running


def agent(*answers: Any, **more: Any) -> Agent:
    body = {"id": "helper", "model": "scripted", "tools": ["fake__"], "answers": list(answers), **more}
    return Agent.model_validate(body)


def server(fake: FakeMcp, **more: Any) -> McpServer:
    return McpServer.model_validate({"name": "fake", "url": fake.url, **more})


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"tool": f"fake__{tool}", "arguments": arguments}


async def started(process: Process, *definitions: Any) -> str:
    await sync(process, *definitions)
    return (await process.app.orchestrate("flow", "go")).run_id


async def test_an_agent_calls_tools_of_a_server(process: Process, fake: FakeMcp) -> None:
    await process.start()
    connections, before = fake.connections, len(fake.calls())
    both = {"calls": [call("add", a=1, b=2), call("fail", message="no paper")]}
    ended = await run(process, flow(STEP), agent(both, call("echo", text="hi"), "done"), server(fake))
    assert (ended.status, ended.result) == (Status.COMPLETED, "done")
    rows = {row.key: row.payload for row in await read_calls(await process.app.database(), ended.id)}
    assert "0/tools/fake" in rows
    assert rows["0/tool/0/call_0"] == '{"value":{"sum":3},"failed":false}'
    assert rows["0/tool/0/call_0_1"] == '{"value":"tool_failed: no paper","failed":true}'
    made = fake.calls()[before:]
    assert sorted(one.tool for one in made) == ["add", "echo", "fail"]
    assert all(one.key is not None and one.key.startswith(f"{ended.id}/work#") for one in made)
    assert len({one.key for one in made}) == 3
    assert [data["tool_name"] for data in await events_of(process, ended.id, "tool_execution")][-1] == "fake__echo"
    step = {"id": "sum", "type": "tool", "forced_tool": "fake__add", "arguments": {"a": 2, "b": 3}, "output_key": "sum"}
    assert (await run(process, flow(step), server(fake))).result == {"sum": 5}
    assert fake.connections == connections + 1


async def test_only_what_is_allowed_is_offered(process: Process, fake: FakeMcp) -> None:
    await process.start()
    before = len(fake.calls())
    ended = await run(
        process, flow(STEP), agent(call("echo", text="hi"), "done"), server(fake, allowed_tools=["add", "slow"])
    )
    assert ended.status is Status.COMPLETED
    assert len(fake.calls()) == before


async def test_a_person_approves_calls_of_tools_that_ask(process: Process, fake: FakeMcp) -> None:
    await process.start()
    before = len(fake.calls("once"))
    run_id = await started(
        process, flow(STEP), agent(call("once", name="asked"), "done"), server(fake, effects={"once": "ask"})
    )
    await eventually(lambda: is_paused(process, run_id), "the run to pause")
    (wait,), _ = await read_inbox(await process.app.database(), InboxFilter("default"))
    assert wait.request["context"]["tool_name"] == "fake__once"
    assert len(fake.calls("once")) == before
    await process.app.resume(run_id, {"decision": "approve"})
    assert (await process.end(run_id)).result == "done"
    assert len(fake.calls("once")) == before + 1


async def test_a_call_that_must_not_be_doubled_is_not_when_its_connection_breaks(
    process: Process, fake: FakeMcp
) -> None:
    await process.start()
    before = len(fake.calls("drop"))
    run_id = await started(process, flow(STEP), agent(call("drop"), "done"), server(fake, effects={"drop": "once"}))
    await eventually(lambda: is_paused(process, run_id), "the run to ask")
    assert len(fake.calls("drop")) == before + 1
    await process.app.resume(run_id, {"decision": "done", "result": "dropped by hand"})
    assert (await process.end(run_id)).result == "done"
    assert len(fake.calls("drop")) == before + 1


async def test_a_repeatable_call_is_made_again_with_the_same_key(process: Process, fake: FakeMcp) -> None:
    await process.start()
    before = len(fake.calls("drop"))
    ended = await run(process, flow(STEP), agent(call("drop"), "done"), server(fake))
    (result,) = [event.data for event in await process.app.events(ended.id) if event.type == "tool_result"]
    assert (ended.result, result["preview"].partition(":")[0]) == ("done", "mcp_unreachable")
    made = fake.calls("drop")[before:]
    assert len(made) > 1
    assert len({one.key for one in made}) == 1


async def test_a_server_that_is_away_fails_the_step(process: Process, fake: FakeMcp) -> None:
    await process.start()
    fake.control(status=503)
    step = {**STEP, "retry": {"attempts": 1}}
    ended = await run(process, flow(step), agent("done"), server(fake))
    assert ended.error["type"] == "mcp_unreachable"
    program_of = {"name": "fake", "server_type": "stdio", "command": fake.command[0], "args": fake.command[1:]}
    ended = await run(process, flow(step), agent("done"), McpServer.model_validate(program_of))
    assert ended.error["type"] == "mcp_refused"
    assert "RUNLANE_MCP_STDIO" in ended.error["message"]


@contextmanager
def worker(settings: Settings, crash: str = "") -> Generator[subprocess.Popen[bytes]]:
    """A worker in a process of its own, which ends at a crash point if one is named."""
    url = settings.database_url
    assert url is not None
    variables = {
        "RUNLANE_DATABASE_URL": url.get_secret_value(),
        "RUNLANE_HEARTBEAT_SECONDS": "0.1",
        "RUNLANE_REAPER_SECONDS": "0.1",
        "RUNLANE_LEASE_SECONDS": "2",
        "RUNLANE_SILENCE_SECONDS": "0.2",
        "RUNLANE_OUTBOUND_ALLOW": "127.0.0.1",
        VARIABLE: crash,
        **forking.MCP,
    }
    command = [sys.executable, "-m", "runlane", "worker", "tests.integration.mcp_app:app"]
    process = forking.Popen(command, env=environment(**variables), stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def killed(settings: Settings, crash: str) -> None:
    with worker(settings, crash) as process:
        await eventually(lambda: process.poll() is not None, "the worker to be killed")
        assert process.returncode == -9


async def test_another_worker_opens_no_connection_for_what_is_recorded(process: Process, fake: FakeMcp) -> None:
    connections, before = fake.connections, len(fake.calls("once"))
    both = {"calls": [call("once", name="kept"), call("once", name="kept")]}
    run_id = await started(process, flow(STEP), agent(both, "done"), server(fake))
    # What is offered, the answer of the model, and both results.
    await killed(process.settings, "journal.kept:4")
    assert (fake.connections, len(fake.calls("once"))) == (connections + 1, before + 2)
    with worker(process.settings):
        ended = await process.end(run_id)
    assert (ended.status, ended.result) == (Status.COMPLETED, "done")
    assert (fake.connections, len(fake.calls("once"))) == (connections + 1, before + 2)


async def test_a_person_decides_about_a_call_that_was_not_recorded(process: Process, fake: FakeMcp) -> None:
    before = len(fake.calls("once"))
    definition = server(fake, effects={"once": "once"})
    run_id = await started(process, flow(STEP), agent(call("once", name="unsure"), "done"), definition)
    await killed(process.settings, "tool.answered")
    assert len(fake.calls("once")) == before + 1
    with worker(process.settings):
        await eventually(lambda: is_paused(process, run_id), "the run to ask")
        await process.app.resume(run_id, {"decision": "done", "result": "1"})
        ended = await process.end(run_id)
    assert (ended.status, ended.result) == (Status.COMPLETED, "done")
    assert len(fake.calls("once")) == before + 1


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
async def test_a_worker_that_calls_no_server_does_not_load_the_library(process: Process) -> None:
    """In a process of its own: this one has loaded it."""
    code = (
        "import asyncio, sys\n"
        "from tests.integration.process import Process\n"
        "from tests.integration.test_orchestrations import flow, run, say\n"
        "from tests.harness import settings_for\n"
        "async def main():\n"
        "    process = Process(settings_for(sys.argv[1]))\n"
        "    await process.start()\n"
        "    try:\n"
        "        assert (await run(process, flow(say('hello', 'Hello')))).result == 'Hello'\n"
        "    finally:\n"
        "        await process.stop()\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('mcp', 'mcp_types')])\n"
    )
    await process.app.database()
    url = process.settings.database_url
    assert url is not None
    command = [sys.executable, "-c", code, url.get_secret_value()]
    found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout.splitlines()[-1:] == ["[]"], found.stderr
