"""No run reaches the inside of the network: with any form of an address, by any means of a definition or a model.

Whole runs, with a server that counts who comes. What is allowed is one other server, so that redirects can begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from runlane.definitions.schema.definition import Agent, Definition, McpServer, Orchestration, Tool
from runlane.errors import InvalidDefinitions
from runlane.settings import Settings
from tests.harness import settings_for
from tests.integration.http_server import Request, Server, Writer, plain, redirect, serving
from tests.integration.process import Process
from tests.integration.test_orchestrations import sync
from tests.integration.test_outbound import LOOPBACK_FORMS

FORMS = [
    *LOOPBACK_FORMS,
    "127.0.0.1.",
    "0.1.2.3",
    "0x7f.1",
    "0x7f000001.",
    "①②⑦.⓪.⓪.①",
    "127。0。0。1",
    "%31%32%37.0.0.1",
    "169.254.0.1",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "100.100.100.200",
    "192.0.0.192",
    "192.0.2.1",
    "203.0.113.1",
    "239.255.255.250",
    "[::ffff:169.254.169.254]",
    "[::ffff:a00:1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b::10.0.0.1]",
    "[2002:a9fe:a9fe::]",
    "[2002:0a00:0001::1]",
    "[fec0::1]",
    "[ff0e::1]",
    "[100::1]",
    "[2001:db8::1]",
]
OTHERS = [
    "file:///etc/passwd",
    "ftp://127.0.0.1/",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "unix:///run/docker.sock",
    "ws://127.0.0.1/",
    "//127.0.0.1/",
    "http://user:word@127.0.0.1/",
]


class Places:
    """A server that runs must not reach, one that is allowed, and runs that try both."""

    def __init__(self, process: Process, inner: Server, allowed: Server) -> None:
        self._process = process
        self.inner = inner
        self.allowed = allowed

    def urls(self) -> list[str]:
        return [f"http://{form}:{self.inner.port}/" for form in FORMS]

    async def failures(self, *definitions: Definition) -> dict[str, dict[str, Any]]:
        """Return the result of a run of each orchestration."""
        await sync(self._process, *definitions)
        names = [definition.id for definition in definitions if isinstance(definition, Orchestration)]
        accepted = [await self._process.app.orchestrate(name, "go") for name in names]
        runs = await asyncio.gather(*(self._process.end(one.run_id) for one in accepted))
        errors = [run.error or {"type": "", "message": str(run.result)} for run in runs]
        return dict(zip(names, errors, strict=True))

    async def refusals(self) -> list[str]:
        """Return the tool results that report a refused address."""
        rows = await (await self._process.store()).sql("select payload from run_calls where kind = 'tool'")
        return [row["payload"] for row in rows if row["payload"].startswith('{"value":"outbound_refused:')]


@pytest.fixture
async def places(settings: Settings) -> AsyncGenerator[Places]:
    async def elsewhere(request: Request, writer: Writer) -> None:
        to = parse_qs(urlsplit(request.target).query).get("to")
        await (redirect(to[0]) if to else plain(b"here"))(request, writer)

    async with serving(plain(b"inside")) as inner, serving(elsewhere) as allowed:
        assert settings.database_url is not None
        url = settings.database_url.get_secret_value()
        process = Process(settings_for(url, outbound_allow=f"127.0.0.1:{allowed.port}"))
        await process.start()
        try:
            yield Places(process, inner, allowed)
        finally:
            await process.stop()


def calling(name: str, tool: str, arguments: dict[str, Any]) -> Orchestration:
    step = {"id": "call", "type": "tool", "forced_tool": tool, "arguments": arguments, "output_key": "found"}
    return Orchestration.model_validate({"id": name, "steps": [step]})


def http(name: str, url: str) -> Tool:
    return Tool.model_validate({"name": name, "url": url})


def not_refused(
    found: dict[str, dict[str, Any]], urls: list[str], code: str = "outbound_refused"
) -> dict[str, dict[str, Any]]:
    return {url: error for url, error in zip(urls, found.values(), strict=True) if error["type"] != code}


async def test_a_tool_cannot_reach_refused_addresses(places: Places) -> None:
    urls = places.urls()
    tools = [http(f"t{number}", url) for number, url in enumerate(urls)]
    found = await places.failures(*tools, *(calling(f"f{tool.name}", tool.name, {}) for tool in tools))
    assert not_refused(found, urls) == {}
    assert places.inner.connections == 0


@pytest.mark.parametrize(
    "url", ["{url}", "http://{host}/", "http://x.{host}/", "http://{host}:80/", "http://a@{host}/", *OTHERS]
)
async def test_no_definition_leaves_the_host_to_an_argument(places: Places, url: str) -> None:
    with pytest.raises(InvalidDefinitions):
        await places.failures(http("open", url))


async def test_an_argument_cannot_lead_to_refused_addresses(places: Places) -> None:
    inner = f"127.0.0.1:{places.inner.port}"
    values = [
        f"//{inner}/", f"@{inner}/", f"\\\\{inner}/", f"http://{inner}/", f"/../..//{inner}", "..", f"#@{inner}/",
        f"?@{inner}/", f":80@{inner}/", f"x\r\nHost: {inner}", f"\thttp://{inner}/", f"%2f%2f{inner}", f".{inner}",
    ]  # fmt: skip
    tools = [http("path", places.allowed.url("/{place}")), http("query", places.allowed.url("/?a={place}"))]
    flows = [
        calling(f"{tool.name}{number}", tool.name, {"place": value})
        for tool in tools
        for number, value in enumerate(values)
    ]
    await places.failures(*tools, *flows)
    assert places.inner.connections == 0
    assert {request.headers["host"] for request in places.allowed.requests} == {f"127.0.0.1:{places.allowed.port}"}


async def test_a_redirect_cannot_lead_to_refused_addresses(places: Places) -> None:
    urls = [*places.urls(), *(url for url in OTHERS if url != "//127.0.0.1/"), f"//127.0.0.1:{places.inner.port}/"]
    flows = [calling(f"f{number}", "go", {"to": url}) for number, url in enumerate(urls)]
    found = await places.failures(http("go", places.allowed.url("/away?to={to}")), *flows)
    assert not_refused(found, urls) == {}
    assert len(places.allowed.requests) == len(urls)
    assert places.inner.connections == 0


async def test_an_mcp_server_cannot_be_at_refused_addresses(places: Places) -> None:
    urls = places.urls()
    servers = [McpServer.model_validate({"name": f"m{number}", "url": url}) for number, url in enumerate(urls)]
    found = await places.failures(*servers, *(calling(f"f{s.name}", f"{s.name}__echo", {}) for s in servers))
    assert not_refused(found, urls, "mcp_refused") == {}
    assert places.inner.connections == 0


async def test_a_redirect_of_an_mcp_server_cannot_lead_to_refused_addresses(places: Places) -> None:
    away = [places.allowed.url(f"/away?to={url}") for url in places.urls()[:5]]
    servers = [McpServer.model_validate({"name": f"m{number}", "url": url}) for number, url in enumerate(away)]
    found = await places.failures(*servers, *(calling(f"f{s.name}", f"{s.name}__echo", {}) for s in servers))
    assert {error["type"] for error in found.values()} == {"mcp_refused"}
    assert places.allowed.requests
    assert places.inner.connections == 0


async def test_a_model_cannot_reach_refused_addresses(places: Places) -> None:
    urls = [*places.urls(), *(url for url in OTHERS if url != "//127.0.0.1/")]
    answers = [{"calls": [{"tool": "go", "arguments": {"to": url}} for url in urls]}, "done"]
    agent = Agent.model_validate({"id": "helper", "model": "scripted", "tools": ["go"], "answers": answers})
    step = {"id": "ask", "type": "agent", "agent_id": "helper", "output_key": "said", "max_tool_calls": 200}
    flow = Orchestration.model_validate({"id": "flow", "steps": [step]})
    found = await places.failures(http("go", places.allowed.url("/away?to={to}")), agent, flow)
    assert found["flow"] == {"type": "", "message": "done"}
    assert len(await places.refusals()) == len(urls)
    assert places.inner.connections == 0
