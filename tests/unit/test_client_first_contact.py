"""A server that does not run: on this machine the client fails soon, and after a TLS failure at once."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing

import pytest

from runlane import Client, Unavailable
from runlane.client import RetryPolicy

# Much less than the default timeout of a client, so that a test that waits for it fails.
SOON_SECONDS = 30.0
LONG = RetryPolicy(give_up_seconds=600, local_seconds=0.2)


async def test_a_local_server_that_refuses_connections_is_given_up_soon() -> None:
    with socket.socket() as unused:
        # Bound and not listening: connections are refused.
        unused.bind(("127.0.0.1", 0))
        async with asyncio.timeout(SOON_SECONDS), Client(_url(unused), retry_policy=LONG) as client:
            with pytest.raises(Unavailable, match="did not respond"):
                await client.lanes()


async def test_a_local_server_that_has_answered_once_is_waited_for() -> None:
    answer = b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\nconnection: close\r\n\r\n{"lanes":[]}'

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()

    waiting = asyncio.Event()
    retry_policy = RetryPolicy(give_up_seconds=600, local_seconds=0, waiting=lambda _: waiting.set())
    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(SOON_SECONDS), Client(f"http://127.0.0.1:{port}", retry_policy=retry_policy) as client:
        await client.lanes()
        server.close()
        await server.wait_closed()
        again = asyncio.create_task(client.lanes())
        await waiting.wait()
        assert not again.done()
        async with await asyncio.start_server(reply, "127.0.0.1", port):
            assert await again == []


async def test_a_tls_failure_is_not_tried_again() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(SOON_SECONDS), Client(url, retry_policy=RetryPolicy(give_up_seconds=600)) as client:
            with pytest.raises(Unavailable, match="did not accept a TLS connection"):
                await client.lanes()


def _url(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"
