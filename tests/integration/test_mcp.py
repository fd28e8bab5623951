"""MCP servers in processes of their own, over every transport."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Collection, Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runlane.definitions.schema.definition import McpServer
from runlane.outbound import Outbound
from runlane.redaction import REDACTED, Redactor
from runlane.settings import Settings
from runlane.testing import FakeMcp
from runlane.testing.fake_mcp import JOURNAL
from runlane.tools.caller import McpCaller, ToolFailed
from runlane.tools.mcp import McpClients
from tests.harness import eventually

WAYS = ["http", "legacy", "sse", "stdio"]
OVER_HTTP = ["http", "legacy", "sse"]
CANARY = "canary-4711-value"


@pytest.fixture(scope="module")
def running() -> Generator[FakeMcp]:
    with FakeMcp() as fake:
        yield fake


@pytest.fixture
def fake(running: FakeMcp) -> FakeMcp:
    running.start()
    running.control()
    return running


@pytest.fixture
def secrets() -> dict[str, str]:
    return {"TOKEN": CANARY}


@pytest.fixture
async def clients(secrets: dict[str, str]) -> AsyncGenerator[McpClients]:
    made = clients_with(secrets)
    yield made
    await made.close()


def clients_with(secrets: Mapping[str, str], **more: Any) -> McpClients:
    async def values(tenant: str, names: Collection[str]) -> Mapping[str, str]:
        assert tenant == "default"
        return {name: secrets[name] for name in names if name in secrets}

    settings = Settings(mcp_stdio=True, outbound_allow="127.0.0.1")
    return McpClients(settings, values, Outbound(settings), **more)


@pytest.fixture
def caller(clients: McpClients) -> McpCaller:
    return clients.for_run("default", Redactor())


def server_over(fake: FakeMcp, way: str, **more: Any) -> McpServer:
    fields: dict[str, Any] = {"name": "fake", "url": fake.url}
    if way == "legacy":
        fake.control(legacy=True)
    elif way == "sse":
        fields["url"] = fake.sse_url
    elif way == "stdio":
        program, *args = fake.command
        fields = {"name": "fake", "server_type": "stdio", "command": program, "args": args}
    return McpServer.model_validate(fields | more)


async def failure_of(calling: Any) -> ToolFailed:
    with pytest.raises(ToolFailed) as caught:
        await calling
    assert CANARY not in caught.value.message
    return caught.value


@pytest.mark.parametrize("way", WAYS)
async def test_tools_are_found_and_called(fake: FakeMcp, caller: McpCaller, way: str) -> None:
    server = server_over(fake, way)
    before, called_before = fake.connections, len(fake.calls())
    offers = {offer.name: offer for offer in await caller.tools(server)}
    assert list(offers) == [
        "echo", "add", "slow", "fail", "huge", "picture", "headers", "environment", "once", "drop",
    ]  # fmt: skip
    assert offers["add"].description == "The sum of two numbers."
    assert offers["add"].input_schema["required"] == ["a", "b"]
    assert await caller.call(server, "add", {"a": 1, "b": 2}, "run/one") == {"sum": 3}
    assert await caller.call(server, "echo", {"text": "nul \x00 ü"}, "run/two") == "nul \ufffd ü"
    assert await caller.call(server, "picture", {}, "run/three") == [
        {"type": "text", "text": "Look:"},
        {"type": "image", "mime_type": "image/png", "size": 8},
    ]
    failed = await failure_of(caller.call(server, "fail", {"message": "no paper"}, "run/four"))
    assert (failed.code, failed.message, failed.retryable) == ("tool_failed", "no paper", False)
    unknown = await failure_of(caller.call(server, "nothing", {}, "run/five"))
    assert (unknown.code, unknown.retryable) == ("tool_failed", False)
    assert "Unknown tool: nothing" in unknown.message
    made = fake.calls()[called_before:]
    assert [call.tool for call in made] == ["add", "echo", "picture", "fail", "nothing"]
    assert [call.key for call in made] == ["run/one", "run/two", "run/three", "run/four", "run/five"]
    assert {call.over for call in made} == {"sse" if way == "sse" else "stdio" if way == "stdio" else "http"}
    assert fake.connections == before + 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_hangs_leaves_others_alone_and_can_be_cancelled(
    fake: FakeMcp, caller: McpCaller, way: str
) -> None:
    server = server_over(fake, way)
    before, slow_before = fake.connections, len(fake.calls("slow"))
    hanging = [asyncio.create_task(caller.call(server, "slow", {"seconds": 600}, str(number))) for number in range(3)]
    await eventually(lambda: len(fake.calls("slow")) == slow_before + 3, "the slow calls to be there")
    answers = await asyncio.gather(*(caller.call(server, "echo", {"text": str(at)}, str(at)) for at in range(20)))
    assert answers == [str(at) for at in range(20)]
    for task in hanging:
        task.cancel()
    ended = await asyncio.gather(*hanging, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended)
    assert await caller.call(server, "echo", {"text": "still there"}, "x") == "still there"
    assert fake.connections == before + 1


@pytest.mark.parametrize("way", WAYS)
async def test_the_first_call_opens_the_connection_for_all(fake: FakeMcp, caller: McpCaller, way: str) -> None:
    server = server_over(fake, way)
    before = fake.connections
    calls = [asyncio.create_task(caller.call(server, "echo", {"text": "a"}, "k")) for _ in range(10)]
    await asyncio.sleep(0)
    calls[0].cancel()
    assert await asyncio.gather(*calls[1:]) == ["a"] * 9
    assert fake.connections == before + 1


@pytest.mark.parametrize("way", OVER_HTTP)
async def test_a_server_that_came_back_is_reconnected(fake: FakeMcp, caller: McpCaller, way: str) -> None:
    server = server_over(fake, way)
    assert await caller.call(server, "echo", {"text": "one"}, "1") == "one"
    before = fake.connections
    await asyncio.to_thread(fake.kill)
    await asyncio.to_thread(fake.start)
    assert await caller.call(server, "echo", {"text": "two"}, "2") == "two"
    # A server without sessions keeps its connection.
    assert fake.connections - before == (0 if way == "http" else 1)
    await asyncio.to_thread(fake.kill)
    away = await failure_of(caller.call(server, "echo", {"text": "three"}, "3"))
    assert (away.code, away.retryable) == ("mcp_unreachable", True)
    # Over event streams the end of the answers may be seen before the fate of the request is known.
    assert way == "sse" or not away.begun
    away = await failure_of(caller.tools(server))
    assert (away.code, away.retryable, away.begun) == ("mcp_unreachable", True, False)
    await asyncio.to_thread(fake.start)
    assert await caller.call(server, "echo", {"text": "four"}, "4") == "four"


async def test_a_program_that_was_killed_is_restarted(fake: FakeMcp, caller: McpCaller) -> None:
    server = server_over(fake, "stdio")
    assert await caller.call(server, "echo", {"text": "one"}, "1") == "one"
    count = len(fake.programs)
    os.kill(fake.programs[-1], signal.SIGKILL)
    await eventually(lambda: not _alive(fake.programs[count - 1]), "the program to be gone")

    async def answered() -> bool:
        # Until its end is noticed, a call may still be sent to it, and the outcome of that is unknown.
        try:
            return await caller.call(server, "echo", {"text": "two"}, "2") == "two"
        except ToolFailed as error:
            if error.code != "mcp_unreachable":
                raise
            return False

    await eventually(answered, "an answer of another program")
    assert len(fake.programs) == count + 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_whose_connection_breaks_has_an_unknown_outcome(
    fake: FakeMcp, caller: McpCaller, way: str
) -> None:
    server = server_over(fake, way)
    before = len(fake.calls("drop"))
    broken = await failure_of(caller.call(server, "drop", {}, "1"))
    assert (broken.code, broken.retryable, broken.begun) == ("mcp_unreachable", True, True)
    assert len(fake.calls("drop")) == before + 1
    assert await caller.call(server, "echo", {"text": "on"}, "2") == "on"


@pytest.mark.parametrize("way", OVER_HTTP)
async def test_connections_that_are_dropped_break_the_calls_on_them(fake: FakeMcp, caller: McpCaller, way: str) -> None:
    server = server_over(fake, way)
    before = len(fake.calls("slow"))
    calls = [asyncio.create_task(caller.call(server, "slow", {"seconds": 600}, str(at))) for at in range(3)]
    await eventually(lambda: len(fake.calls("slow")) == before + 3, "the calls to be there")
    fake.drop()
    for failed in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(failed, ToolFailed)
        assert (failed.code, failed.retryable, failed.begun) == ("mcp_unreachable", True, True)
    assert await caller.call(server, "echo", {"text": "on"}, "2") == "on"


@pytest.mark.parametrize("way", OVER_HTTP)
async def test_secrets_go_along_as_headers_and_do_not_come_back(
    fake: FakeMcp, caller: McpCaller, secrets: dict[str, str], way: str
) -> None:
    more: dict[str, Any] = {"token": "{secret.TOKEN}", "headers": {"X-Team": "team {secret.TEAM}"}}
    server = server_over(fake, way, **more)
    missing = await failure_of(caller.tools(server))
    assert (missing.code, missing.begun) == ("unknown_secret", False)
    assert "TEAM" in missing.message
    secrets["TEAM"] = "blue-canary-team\n"
    fake.control(token=CANARY, legacy=way == "legacy")
    received = await caller.call(server, "headers", {}, "1")
    assert CANARY not in str(received)
    headers = received["headers"]
    assert (headers["authorization"], headers["x-team"]) == (f"Bearer {REDACTED}", f"team {REDACTED}")
    seen = fake.calls("headers")[-1].headers
    assert (seen["authorization"], seen["x-team"]) == (f"Bearer {CANARY}", "team blue-canary-team")
    secrets["TOKEN"] = "a newer value"
    refused = await failure_of(caller.call(server, "echo", {"text": "x"}, "2"))
    assert (refused.code, refused.retryable, refused.begun) == ("mcp_refused", False, False)
    assert "401" in refused.message
    fake.control(token="a newer value", legacy=way == "legacy")
    assert await caller.call(server, "echo", {"text": "x"}, "3") == "x"


async def test_every_run_on_a_shared_connection_learns_what_it_was_opened_with(
    fake: FakeMcp, clients: McpClients
) -> None:
    server = server_over(fake, "http", token="{secret.TOKEN}")
    fake.control(token=CANARY)
    runs = [Redactor(), Redactor()]
    for number, redactor in enumerate(runs):
        assert await clients.for_run("default", redactor).call(server, "echo", {"text": "x"}, str(number)) == "x"
    # Both runs on the connection redact the value; a run without a call does not.
    assert [redactor.clean(CANARY) for redactor in (*runs, Redactor())] == [REDACTED, REDACTED, CANARY]


async def test_a_program_gets_its_own_environment_and_little_of_ours(
    fake: FakeMcp, caller: McpCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNLANE_DATABASE_URL", "postgresql://user@nowhere/nothing")
    monkeypatch.setenv("LANG", "C.UTF-8")
    server = server_over(fake, "stdio", env={"API_KEY": "{secret.TOKEN}", "MODE": "test"})
    environment = (await caller.call(server, "environment", {}, "1"))["environment"]
    # Python sets LC_CTYPE for itself.
    assert set(environment) - {"LC_CTYPE"} == {"PATH", "HOME", "LANG", "API_KEY", "MODE"}
    assert (environment["API_KEY"], environment["MODE"]) == (REDACTED, "test")
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("way", WAYS)
async def test_results_are_bounded(fake: FakeMcp, caller: McpCaller, way: str) -> None:
    small = server_over(fake, way, max_output_bytes=1000)
    large = await failure_of(caller.call(small, "huge", {"size": 999}, "1"))
    assert (large.code, large.retryable) == ("mcp_too_large", False)
    assert len(await caller.call(small, "huge", {"size": 998}, "2")) == 998
    # More than the limit of reading: the answer is cut off while it comes in.
    huge = await failure_of(caller.call(small, "huge", {"size": 6_000_000}, "3"))
    assert (huge.code, huge.retryable) == ("mcp_too_large", False)
    assert await caller.call(small, "echo", {"text": "on"}, "4") == "on"


async def test_offers_are_bounded_and_so_are_their_names(fake: FakeMcp, caller: McpCaller) -> None:
    server = server_over(fake, "http")
    fake.control(extra_tools=246)
    assert len(await caller.tools(server)) == 256
    fake.control(extra_tools=247)
    many = await failure_of(caller.tools(server))
    assert (many.code, many.retryable) == ("mcp_too_large", False)
    assert "allowed_tools" in many.message
    chosen = server_over(fake, "http", allowed_tools=["extra_246", "add"])
    assert [offer.name for offer in await caller.tools(chosen)] == ["add", "extra_246"]
    fake.control(schema_size=70_000)
    big = await failure_of(caller.tools(server))
    assert (big.code, "big" in big.message) == ("mcp_too_large", True)
    for odd, taken in (("has.dots/and", True), ("x" * 128, True), ("has space", False), ("x" * 129, False)):
        fake.control(odd_name=odd)
        assert (odd in {offer.name for offer in await caller.tools(server)}) == taken


@pytest.mark.parametrize("way", OVER_HTTP)
@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (401, "mcp_refused", False),
        (403, "mcp_refused", False),
        (404, "mcp_refused", False),
        (429, "mcp_refused", True),
        (500, "mcp_unreachable", True),
        (503, "mcp_unreachable", True),
    ],
)
async def test_each_status_of_an_mcp_server_has_its_code(
    fake: FakeMcp, caller: McpCaller, way: str, status: int, code: str, retryable: bool
) -> None:
    server = server_over(fake, way)
    fake.control(status=status)
    opening = await failure_of(caller.tools(server))
    assert (opening.code, opening.retryable, opening.begun) == (code, retryable, False)
    assert str(status) in opening.message
    fake.control(legacy=way == "legacy")
    assert await caller.call(server, "echo", {"text": "on"}, "1") == "on"
    fake.control(status=status)
    later = await failure_of(caller.call(server, "echo", {"text": "on"}, "2"))
    assert (later.code, later.retryable) == (code, retryable)
    fake.control(legacy=way == "legacy")
    assert await caller.call(server, "echo", {"text": "on"}, "3") == "on"


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_takes_no_longer_than_it_may(fake: FakeMcp, clients: McpClients, way: str) -> None:
    caller = clients.for_run("default", Redactor())
    server = server_over(fake, way, timeout_seconds=20)
    await caller.tools(server)
    # Another definition would be another connection.
    (link,) = clients._links.values()

    async def send(client: Any) -> Any:
        from runlane.tools.mcp.convert import call_tool

        return await call_tool(client, link._target, "slow", {"seconds": 600}, "1")

    slow = await failure_of(link.request(send, 1))
    assert (slow.code, slow.retryable, slow.begun) == ("mcp_timeout", True, True)
    assert await caller.call(server, "echo", {"text": "on"}, "2") == "on"


async def test_a_server_that_does_not_answer_is_not_waited_for(caller: McpCaller) -> None:
    asked: list[int] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(1)
        with contextlib.closing(writer), contextlib.suppress(OSError):
            await reader.read()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        server = McpServer.model_validate({"name": "mute", "url": f"http://127.0.0.1:{port}/", "timeout_seconds": 2})
        mute = await failure_of(caller.call(server, "echo", {}, "1"))
    assert (mute.code, mute.retryable, mute.begun) == ("mcp_timeout", True, False)
    assert asked


async def test_a_server_that_is_not_an_mcp_server_is_reported(caller: McpCaller) -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello"
            )
            await writer.drain()

    async with await asyncio.start_server(page, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        server = McpServer.model_validate({"name": "page", "url": f"http://127.0.0.1:{port}/"})
        other = await failure_of(caller.tools(server))
    assert (other.code, other.retryable) == ("mcp_protocol", False)


@pytest.mark.parametrize("way", WAYS)
async def test_an_unused_connection_is_closed(fake: FakeMcp, way: str) -> None:
    clients = clients_with({}, idle_seconds=0.1)
    try:
        server = server_over(fake, way)
        before = fake.connections
        # Longer than a connection is kept without use: this one is used.
        assert await clients.for_run("default", Redactor()).call(server, "slow", {"seconds": 0.5}, "1") == "done"
        await eventually(lambda: not clients._links, "the connection to be closed")
        if way == "stdio":
            assert not _alive(fake.programs[-1])
        assert await clients.for_run("default", Redactor()).call(server, "echo", {"text": "on"}, "2") == "on"
        assert fake.connections == before + 2
    finally:
        await clients.close()


@pytest.mark.parametrize("way", WAYS)
async def test_closing_ends_what_is_under_way(fake: FakeMcp, way: str) -> None:
    clients = clients_with({})
    server = server_over(fake, way)
    before = len(fake.calls("slow"))
    call = asyncio.create_task(clients.for_run("default", Redactor()).call(server, "slow", {"seconds": 600}, "1"))
    await eventually(lambda: len(fake.calls("slow")) == before + 1, "the call to be there")
    await clients.close()
    await clients.close()
    assert (await failure_of(call)).code == "mcp_unreachable"
    if way == "stdio":
        assert not _alive(fake.programs[-1])
    late = await failure_of(clients.for_run("default", Redactor()).call(server, "echo", {"text": "late"}, "2"))
    assert (late.code, late.begun) == ("mcp_unreachable", False)


async def test_programs_are_not_started_unless_that_is_allowed(fake: FakeMcp) -> None:
    async def values(tenant: str, names: Collection[str]) -> Mapping[str, str]:
        return {}

    clients = McpClients(Settings(), values, Outbound(Settings()))
    before = len(fake.programs)
    refused = await failure_of(clients.for_run("default", Redactor()).tools(server_over(fake, "stdio")))
    assert (refused.code, refused.retryable, refused.begun) == ("mcp_refused", False, False)
    assert "RUNLANE_MCP_STDIO=true" in refused.message
    assert len(fake.programs) == before


async def test_servers_within_our_own_network_are_refused_unless_they_are_allowed(fake: FakeMcp) -> None:
    async def values(tenant: str, names: Collection[str]) -> Mapping[str, str]:
        return {}

    clients = McpClients(Settings(), values, Outbound(Settings()))
    before = fake.connections
    for way in ("http", "sse"):
        refused = await failure_of(clients.for_run("default", Redactor()).tools(server_over(fake, way)))
        assert (refused.code, refused.retryable, refused.begun) == ("mcp_refused", False, False)
        assert "RUNLANE_OUTBOUND_ALLOW" in refused.message
    await clients.close()
    assert fake.connections == before


def program(code: str, **more: Any) -> McpServer:
    fields = {"name": "it", "server_type": "stdio", "command": sys.executable, "args": ["-c", code], **more}
    return McpServer.model_validate(fields)


async def test_a_program_that_ends_or_does_not_exist_is_reported_with_the_reason(caller: McpCaller) -> None:
    code = "import os, sys; sys.stderr.write('bad key ' + os.environ['KEY']); sys.exit(7)"
    ended = await failure_of(caller.tools(program(code, env={"KEY": "{secret.TOKEN}"})))
    assert (ended.code, ended.begun) == ("mcp_unreachable", False)
    assert "code 7" in ended.message
    assert f"bad key {REDACTED}" in ended.message
    none = McpServer.model_validate({"name": "none", "server_type": "stdio", "command": "/nowhere/nothing"})
    missing = await failure_of(caller.tools(none))
    assert (missing.code, missing.retryable, missing.begun) == ("mcp_unreachable", False, False)
    assert "No such file" in missing.message


async def test_a_program_that_floods_its_output_is_ended(caller: McpCaller) -> None:
    flood = await failure_of(caller.tools(program("import sys\nwhile True: sys.stdout.write('x' * 100000)")))
    assert (flood.code, flood.retryable) == ("mcp_too_large", False)


async def test_a_program_that_ignores_the_stop_is_killed(fake: FakeMcp) -> None:
    clients = clients_with({})
    stubborn = (
        "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.argv[1:] = "
        f"{fake.command[3:]!r}; from runlane.testing.fake_mcp import main; main(); signal.pause()"
    )
    assert await clients.for_run("default", Redactor()).call(program(stubborn), "echo", {"text": "on"}, "1") == "on"
    pid = fake.programs[-1]
    await clients.close()
    assert not _alive(pid)


async def test_output_of_servers_is_not_logged(
    fake: FakeMcp, caller: McpCaller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    server = server_over(fake, "http", token="{secret.TOKEN}")
    await caller.call(server, "headers", {}, "1")
    greeting = f"print('{CANARY}', flush=True); input()"
    await failure_of(caller.tools(program(greeting, timeout_seconds=1)))
    assert CANARY not in caplog.text


def test_half_a_line_of_what_the_fake_server_did_is_not_read(tmp_path: Path) -> None:
    fake = FakeMcp()
    fake._home = tmp_path
    whole = b'{"kind":"program","pid":1}\n'
    (tmp_path / JOURNAL).write_bytes(whole + whole[:10])
    assert fake.programs == [1]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
