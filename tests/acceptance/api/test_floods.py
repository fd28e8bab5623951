"""Floods from clients without a key, over raw sockets: each is bounded, and health is answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runlane.access.keyring import new_key
from runlane.api import protocol
from runlane.event_loop.offload import LARGE_BYTES
from runlane.settings import Settings
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.serving import API, Api, copy_of, process, serving
from tests.acceptance.api.shop import app as shop
from tests.harness import eventually, settings_for

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def served(url: str, **options: Any) -> AsyncGenerator[Api]:
    async with serving(copy_of(shop, settings_for(url, grace_seconds=0.2, **options))) as api:
        yield api


@asynccontextmanager
async def connected(api: Api) -> AsyncGenerator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Return everything until the server closes or resets the connection."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := await asyncio.wait_for(reader.read(65536), 60):
            received += piece
    return received


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    """Return the one answer of a connection, which the server ends after it."""
    received = await asyncio.wait_for(reader.read(), 60)
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), orjson.loads(body)


async def health(api: Api) -> None:
    async with connected(api) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await answer_of(reader))[0] == 200


async def send_until_closed(writer: asyncio.StreamWriter, piece: bytes, most: int) -> int:
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < most and not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
    return sent


HEADS = {
    "many headers": b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 1100,
    "one long value": b"GET /health HTTP/1.1\r\nHost: x\r\nx-long: " + b"v" * 40_000,
    "one long name": b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"n" * 40_000,
    "a long path": b"GET /" + b"p" * 40_000,
    "many empty headers": b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 1100,
}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", HEADS)
async def test_a_head_too_large_is_431(sqlite_url: str, kind: str, whole: bool) -> None:
    head = HEADS[kind]
    if whole:
        ends = {"one long name": b": v\r\n\r\n", "a long path": b" HTTP/1.1\r\nHost: x\r\n\r\n"}
        head += ends.get(kind, b"\r\n\r\n")
    async with served(sqlite_url) as api, connected(api) as (reader, writer):
        for start in range(0, len(head), 4096):
            writer.write(head[start : start + 4096])
            await writer.drain()
        if not whole:
            await send_until_closed(writer, b"x" * 4096, 200_000)
        status, body = await answer_of(reader)
        assert (status, body["code"]) == (431, "head_too_large")
        assert "RUNLANE_API_MAX_HEAD_BYTES" in body["message"]
        await health(api)


async def test_a_head_within_the_limit_is_taken_in_pieces_of_any_size(sqlite_url: str) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-long: " + b"v" * 20_000 + b"\r\n\r\n"
    async with served(sqlite_url) as api:
        for size in (7, 1000, len(head)):
            async with connected(api) as (reader, writer):
                for start in range(0, len(head), size):
                    writer.write(head[start : start + size])
                assert (await answer_of(reader))[0] == 200


@pytest.mark.parametrize("trailer", [b"t: v\r\n", b"v" * 100])
async def test_endless_trailers_of_a_chunked_body_are_431(sqlite_url: str, trailer: bytes) -> None:
    async with served(sqlite_url) as api, connected(api) as (reader, writer):
        key = await api.key()
        writer.write(
            f"POST {API}/tasks/greet/run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nt: ".encode()
        )
        await send_until_closed(writer, trailer * 100, 400_000)
        assert (await answer_of(reader))[0] == 431


async def test_a_head_that_does_not_arrive_is_408(sqlite_url: str) -> None:
    async with served(sqlite_url, api_head_seconds=0.3) as api, connected(api) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nHost:")
        trickle = asyncio.create_task(_trickle(writer, b"x"))
        try:
            status, body = await answer_of(reader)
        finally:
            trickle.cancel()
        assert (status, body["code"]) == (408, "request_timeout")
        assert "RUNLANE_API_HEAD_SECONDS" in body["message"]


async def test_a_connection_that_sends_nothing_is_closed(sqlite_url: str) -> None:
    async with served(sqlite_url, api_head_seconds=0.2) as api, connected(api) as (reader, _):
        assert await asyncio.wait_for(reader.read(), 60) == b""


async def test_blank_lines_do_not_keep_a_connection(sqlite_url: str) -> None:
    async with served(sqlite_url, api_head_seconds=0.3) as api, connected(api) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"}")
        trickle = asyncio.create_task(_trickle(writer, b"\r\n"))
        try:
            assert await rest_of(reader) == b""
        finally:
            trickle.cancel()


async def _trickle(writer: asyncio.StreamWriter, piece: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)


def _half_sent(key: str) -> bytes:
    return (
        f"POST {API}/tasks/greet/run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        'Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"input":"'
    ).encode()


async def test_a_body_that_does_not_arrive_is_408(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with served(sqlite_url, api_body_seconds=0.3) as api, connected(api) as (reader, writer):
        writer.write(_half_sent(await api.key()))
        trickle = asyncio.create_task(_trickle(writer, b"x"))
        try:
            status, body = await answer_of(reader)
        finally:
            trickle.cancel()
        assert (status, body["code"]) == (408, "request_timeout")
        assert "RUNLANE_API_BODY_SECONDS" in body["message"]
        assert (await api.get("/runs")).json()["runs"] == []
    assert "Exception in ASGI application" not in caplog.text


async def test_a_body_that_arrives_steadily_is_taken(sqlite_url: str) -> None:
    """More than 1024 bytes per second, over several times the limit."""
    body = orjson.dumps({"input": {"text": "x" * 40_000}})
    async with served(sqlite_url, api_body_seconds=0.2) as api, connected(api) as (reader, writer):
        head = _half_sent(await api.key()).partition(b"\r\n\r\n")[0]
        head = re.sub(rb"Content-Length: \d+", b"Connection: close\r\nContent-Length: %d" % len(body), head)
        writer.write(head + b"\r\n\r\n")
        for start in range(0, len(body), 1000):
            writer.write(body[start : start + 1000])
            await asyncio.sleep(0.015)
        assert (await answer_of(reader))[0] == 202


async def test_a_refused_client_cannot_continue_its_body(sqlite_url: str) -> None:
    """Without a key the answer is 401 before the body; the rest of it does not hold the connection."""
    async with served(sqlite_url, api_body_seconds=0.3) as api, connected(api) as (reader, writer):
        writer.write(_half_sent("sk-rl-" + "0" * 64))
        trickle = asyncio.create_task(_trickle(writer, b"x"))
        try:
            assert b" 401 " in await rest_of(reader)
        finally:
            trickle.cancel()


async def test_pipelined_requests_are_bounded(sqlite_url: str) -> None:
    async with served(sqlite_url) as api, connected(api) as (reader, writer):
        writer.write(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n" * 2000)
        answers = await asyncio.wait_for(reader.read(), 60)
        assert answers.count(b"HTTP/1.1") <= protocol.MAX_PIPELINED + 2
    async with served(sqlite_url) as api, connected(api) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 60)).count(b"200 OK") == 11


async def test_idle_connections_make_room_for_new_ones(sqlite_url: str) -> None:
    async with served(sqlite_url, api_max_connections=20) as api, contextlib.AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(connected(api)) for _ in range(60)]
        for _ in range(5):
            await health(api)
            assert (await api.get("/runs")).status_code == 200
        await eventually(lambda: idle[0][0].at_eof() or _has_eof(idle[0][0]), "the oldest connection is closed")


def _has_eof(reader: asyncio.StreamReader) -> bool:
    return reader.exception() is not None


async def test_without_room_health_is_answered_and_the_rest_is_503(sqlite_url: str) -> None:
    async with served(sqlite_url, api_max_connections=5) as api, contextlib.AsyncExitStack() as stack:
        run = await api.run("greet", wait=False, input={"text": "Ada"})
        key = await api.key()
        for _ in range(5):
            reader, writer = await stack.enter_async_context(connected(api))
            path = f"{API}/runs/{run['run_id']}/stream"
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
            assert b"200 OK" in await reader.readuntil(b"\n\n")
        await health(api)
        async with connected(api) as (reader, writer):
            writer.write(f"GET {API}/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
            received = await asyncio.wait_for(reader.read(), 60)
        assert received.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in received
        assert b'"code":"overloaded"' in received


async def test_streams_per_key_are_bounded(sqlite_url: str) -> None:
    async with served(sqlite_url, api_max_streams_per_key=2) as api:
        run = await api.run("greet", wait=False, input={"text": "Ada"})
        path = f"{API}/runs/{run['run_id']}/stream"
        async with api.client.stream("GET", path) as first, api.client.stream("GET", path) as second:
            assert (first.status_code, second.status_code) == (200, 200)
            refused = await api.client.get(path)
            assert (refused.status_code, refused.json()["code"]) == (429, "stream_limited")
            assert int(refused.headers["retry-after"]) >= 1
            waiting = await api.get(f"/runs/{run['run_id']}/wait")
            assert waiting.status_code == 429
            other = {"Authorization": f"Bearer {await api.key()}"}
            async with api.client.stream("GET", path, headers=other) as third:
                assert third.status_code == 200
        await eventually(lambda: api.parts.tail.followers == 0, "no follower")
        async with api.client.stream("GET", path) as again:
            assert again.status_code == 200


async def test_the_limits_are_those_of_the_command(sqlite_url: str) -> None:
    settings = settings_for(sqlite_url)
    with process("serve", "--port", "0", settings=settings, RUNLANE_API_MAX_HEAD_BYTES="2000") as server:
        port = int(server.wait_for("serving")["url"].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nx-long: " + b"v" * 3000 + b"\r\n\r\n")
        assert (await answer_of(reader))[0] == 431
        writer.close()


def _memory_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


async def test_memory_stays_bounded_in_a_flood_of_headers(sqlite_url: str) -> None:
    """40 MB of headers took more than 600 MB without the limit."""
    with process("serve", "--port", "0", settings=settings_for(sqlite_url)) as server:
        port = int(server.wait_for("serving")["url"].rpartition(":")[2])
        before = _memory_bytes(server.pid)

        async def flood() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n")
            await send_until_closed(writer, b"a: b\r\n" * 5_000, 4_000_000)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.transport.abort()

        await asyncio.gather(*(flood() for _ in range(10)))
        assert _memory_bytes(server.pid) - before < 60_000_000


def test_the_server_in_use_is_the_limited_one(settings_of_defaults: Settings) -> None:
    config = protocol.server_config(_nothing, settings_of_defaults)
    config.load()
    assert issubclass(config.http_protocol_class, protocol.LimitedProtocol)
    assert issubclass(config.http_protocol_class, HttpToolsProtocol)


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """An application that does nothing."""


@pytest.fixture
def settings_of_defaults(sqlite_url: str) -> Settings:
    return settings_for(sqlite_url)


async def test_large_bodies_of_a_tenant_are_bounded_in_bytes(sqlite_url: str) -> None:
    """A parsed body takes up to twenty times its bytes."""
    size = 1024 * 1024
    async with served(sqlite_url, api_max_body_bytes=size, secret_key=new_key()) as api:
        await create_tenant(api.parts.database, "acme", actor="test")
        keys = {tenant: await api.key("developer", tenant=tenant) for tenant in ("default", "acme")}

        async def begin(stack: contextlib.AsyncExitStack, key: str, sent: int = size - 1) -> Streams:
            """Send the first bytes of a body, by default all but the last one."""
            reader, writer = await stack.enter_async_context(connected(api))
            head = f"POST {API}/stream-tokens HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + b'"' + b"x" * (sent - 1))
            await writer.drain()
            return reader, writer

        async def counted(tenant: str, bodies: int) -> None:
            async def has_arrived() -> bool:
                return api.application.state.large_bodies[tenant] >= bodies * (size - 1)

            await eventually(has_arrived, f"{bodies} bodies")

        async with contextlib.AsyncExitStack() as stack:
            first = [await begin(stack, keys["acme"]) for _ in range(4)]
            await counted("acme", 4)
            # Bytes behind those that the server reads would reset the connection.
            reader, _ = await begin(stack, keys["acme"], LARGE_BYTES + 1)
            status, problem = await answer_of(reader)
            assert (status, problem["code"]) == (429, "bodies_limited")
            # Small requests of the tenant and large ones of others are served.
            small = {"Authorization": f"Bearer {keys['acme']}"}
            assert (await api.get("/runs", headers=small)).status_code == 200
            others = [await begin(stack, keys["default"])]
            for reader, writer in [*first, *others]:
                writer.write(b'"')
                assert (await answer_of(reader))[0] == 422
            reader, writer = await begin(stack, keys["acme"])
            writer.write(b'"')
            assert (await answer_of(reader))[0] == 422
