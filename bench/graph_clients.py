"""Clients of an agent server: they start runs of the graph of three nodes, and wait for them or stream them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import orjson

from bench.http_client import HOST
from bench.server import ApiServer

BODY = orjson.dumps({"assistant_id": "three", "input": {"value": 1, "items": []}})


async def finish_runs(servers: Sequence[ApiServer], count: int, clients: int) -> None:
    """Start runs in threads of their own and wait for each, with as many clients, which share the servers."""
    share = max(1, count // clients)

    async def use(stack: AsyncExitStack, server: ApiServer) -> None:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        stack.callback(writer.close)
        for _ in range(share):
            writer.write(_request(server, "/runs/wait"))
            answer = await _chunked(reader)
            if b'"value":4' not in answer.replace(b" ", b""):
                raise RuntimeError(f"A run returned {answer[:500]!r}")

    async with AsyncExitStack() as stack:
        await asyncio.gather(*(use(stack, servers[number % len(servers)]) for number in range(clients)))


async def first_event_ms(server: ApiServer) -> float:
    """Stream one run to its end, and return the time from the request to its first event."""
    reader, writer = await asyncio.open_connection(HOST, server.port)
    try:
        started = time.perf_counter()
        writer.write(_request(server, "/runs/stream"))
        await reader.readuntil(b"event: ")
        found = time.perf_counter() - started
        await reader.readuntil(b"event: end")
        # The end of the response: some servers cancel what they do after the run when a client leaves before it.
        await reader.readuntil(b"\r\n0\r\n\r\n")
        return found * 1000
    finally:
        writer.close()


def _request(server: ApiServer, path: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {HOST}:{server.port}\r\nauthorization: Bearer {server.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n"
    )
    return head.encode() + BODY


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    """Return the body of a chunked response."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise RuntimeError(f"A request was answered with {head!r}")
    found: list[bytes] = []
    while length := int(await reader.readuntil(b"\r\n"), 16):
        found.append(await reader.readexactly(length))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(found)
