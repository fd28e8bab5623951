"""The connections of outbound requests: reused, limited, given back and closed."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing, suppress

import httpx2
import pytest

from runlane.errors import OutboundTimeout, OutboundUnreachable
from runlane.outbound import Outbound, OutboundLimits, pool
from runlane.outbound.stream import connect
from runlane.settings import load_settings
from tests.harness import eventually
from tests.integration.http_server import Request, Writer, plain, serving

LOOPBACK = "127.0.0.0/8"


@asynccontextmanager
async def outbound() -> AsyncGenerator[Outbound]:
    async def loopback(_host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    calling = Outbound(load_settings(outbound_allow=LOOPBACK), resolve=loopback)
    try:
        yield calling
    finally:
        await calling.close()


class Held:
    """A handler that answers once it is released."""

    def __init__(self) -> None:
        self.arrived = 0
        self.release = asyncio.Event()

    async def __call__(self, request: Request, writer: Writer) -> None:
        self.arrived += 1
        await self.release.wait()
        await plain()(request, writer)


async def test_a_connection_serves_one_request_after_another() -> None:
    async with serving(plain()) as server, outbound() as calling:
        for _ in range(5):
            assert (await calling.request("POST", server.url(), content=b"body")).text == "ok"
        assert server.connections == 1
        assert [request.body for request in server.requests] == [b"body"] * 5


async def test_concurrent_requests_have_connections_of_their_own() -> None:
    held = Held()
    async with serving(held) as server, outbound() as calling:
        requests = [asyncio.create_task(calling.request("GET", server.url())) for _ in range(5)]
        await eventually(lambda: held.arrived == 5)
        held.release.set()
        assert {response.status for response in await asyncio.gather(*requests)} == {200}
        await asyncio.gather(*(calling.request("GET", server.url()) for _ in range(5)))
        assert server.connections == 5


async def test_a_connection_is_not_shared_between_origins() -> None:
    async with serving(plain()) as one, serving(plain()) as other, outbound() as calling:
        for server in (one, other, one, other):
            await calling.request("GET", server.url())
        await calling.request("GET", one.url(host="another.example"))
        assert (one.connections, other.connections) == (2, 1)


async def test_a_connection_that_the_server_closed_while_it_was_idle_is_not_used() -> None:
    closed = asyncio.Event()

    async def answer_and_close(request: Request, writer: Writer) -> None:
        await plain()(request, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        closed.set()

    async with serving(answer_and_close) as server, outbound() as calling:
        for count in (1, 2, 3):
            closed.clear()
            # A request that was sent could not be repeated, because the server may have processed it.
            assert (await calling.request("POST", server.url(), content=b"once")).status == 200
            await closed.wait()
            assert server.connections == count


async def test_an_idle_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_IDLE_SECONDS", 0.05)
    writers: list[Writer] = []

    async def answer(request: Request, writer: Writer) -> None:
        writers.append(writer)
        await plain()(request, writer)

    async with serving(answer) as server, outbound() as calling:
        await asyncio.gather(*(calling.request("GET", server.url()) for _ in range(3)))
        await eventually(lambda: all(writer.transport.is_closing() for writer in writers))
        assert (await calling.request("GET", server.url())).status == 200
        assert server.connections >= 2


async def test_a_request_beyond_the_limit_waits_for_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_CONNECTIONS", 2)
    held = Held()
    async with serving(held) as server, outbound() as calling:
        requests = [asyncio.create_task(calling.request("GET", server.url())) for _ in range(2)]
        await eventually(lambda: held.arrived == 2)
        with pytest.raises(OutboundTimeout):
            await calling.request("GET", server.url(), limits=OutboundLimits(connect_seconds=0.05))
        waiting = asyncio.create_task(calling.request("GET", server.url()))
        await asyncio.sleep(0)
        held.release.set()
        await asyncio.gather(*requests, waiting)
        assert (held.arrived, server.connections) == (3, 2)


async def test_an_idle_connection_makes_room_for_another_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_CONNECTIONS", 1)
    writers: list[Writer] = []

    async def answer(request: Request, writer: Writer) -> None:
        writers.append(writer)
        await plain()(request, writer)

    async with serving(answer) as one, serving(plain()) as other, outbound() as calling:
        await calling.request("GET", one.url())
        await calling.request("GET", other.url())
        await eventually(writers[0].transport.is_closing)


async def test_requests_that_end_early_give_their_connections_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_CONNECTIONS", 1)
    held = Held()
    async with serving(held) as hanging, serving(plain(bytes(300_000))) as server, outbound() as calling:
        cancelled = asyncio.create_task(calling.request("GET", hanging.url()))
        await eventually(lambda: held.arrived == 1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(OutboundTimeout):
            await calling.request("GET", hanging.url(), limits=OutboundLimits(read_seconds=0.05))
        with pytest.raises(OutboundUnreachable):
            await calling.request("GET", "http://127.0.0.1:1/")
        # Only a part of the body is read.
        assert len((await calling.request("GET", server.url(), keep_bytes=10)).body) == 10
        assert len((await calling.request("GET", server.url())).body) == 300_000


async def test_closing_ends_requests_in_progress() -> None:
    async def begin(_request: Request, writer: Writer) -> None:
        # Without a length, the end of the connection is the end of the body.
        writer.write(b"HTTP/1.1 200 OK\r\n\r\npart")
        await writer.drain()
        await asyncio.Event().wait()

    async with serving(begin) as server, outbound() as calling:
        client = calling.client()
        async with client.stream("GET", server.url()) as response:
            pieces = response.aiter_bytes()
            assert await anext(pieces) == b"part"
            await client.aclose()
            with pytest.raises(httpx2.ReadError):
                await anext(pieces)


async def test_a_body_that_ends_with_a_broken_connection_is_an_error() -> None:
    async def reset(_request: Request, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\npart")
        await writer.drain()
        raw: socket.socket = writer.get_extra_info("socket")
        # Closing sends a reset.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def end(_request: Request, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nwhole")
        await writer.drain()
        writer.close()

    async with serving(reset) as broken, serving(end) as server, outbound() as calling:
        assert (await calling.request("GET", server.url())).text == "whole"
        with pytest.raises(OutboundUnreachable):
            await calling.request("GET", broken.url())


async def test_a_server_is_paused_while_its_response_is_not_read() -> None:
    paused = asyncio.Event()
    whole = 64 * 1024 * 1024

    async def flood(reader: asyncio.StreamReader, writer: Writer) -> None:
        with closing(writer), suppress(ConnectionError):
            await reader.readexactly(5)
            for _ in range(whole // 65536):
                writer.write(bytes(65536))
                try:
                    async with asyncio.timeout(0.2):
                        await writer.drain()
                except TimeoutError:
                    paused.set()
                    await writer.drain()

    listener = await asyncio.start_server(flood, "127.0.0.1", 0)
    async with listener:
        stream = await connect("127.0.0.1", listener.sockets[0].getsockname()[1], 10)
        await stream.write(b"begin", 10)
        await asyncio.wait_for(paused.wait(), 60)
        size = 0
        while piece := await stream.read(100_000, 60):
            assert len(piece) <= 100_000
            size += len(piece)
        assert size == whole
        stream.close()


async def test_an_answer_that_comes_before_the_body_was_sent_is_returned() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: Writer) -> None:
        with closing(writer), suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            writer.write_eof()
            while await reader.read(65536):
                pass

    listener = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with listener, outbound() as calling:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
        assert (await calling.request("POST", url, content=bytes(16 * 1024 * 1024))).status == 413
