"""Graphs: runs of a hosted LangGraph graph of three trivial nodes over HTTP, with one and with two workers.

Each of many clients starts a run in a thread of its own and waits for its values, then starts the next. The first event
is measured by one client that streams: from its request to the first event of the run. Checkpoints, writes and events
are stored as in production (durability `async`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack

import orjson

from bench.http_client import HOST
from bench.measures import SYSTEMS, Sizes
from bench.process import running
from bench.samples import Sample
from bench.server import ApiServer, serving
from bench.servers import Servers

WORKERS = (1, 2)
FIRST_EVENT = "first event"
_WORKER = ("-m", "runlane", "worker", "bench.systems.graphs:app")
_BODY = orjson.dumps({"assistant_id": "three", "input": {"value": 1, "items": []}})
_READY_SECONDS = 60


def rate(workers: int) -> str:
    """Return the variant of the runs per second with this many workers."""
    return f"{workers} workers"


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield the rate with each number of workers, and the times of the first event with one."""
    if not sizes.select("runlane"):
        return
    for repeat in range(sizes.repeats):
        for workers in WORKERS:
            with servers.workspace() as workspace, ExitStack() as processes:
                await SYSTEMS["runlane"](workspace).prepare()
                async with serving(servers, workspace) as server:
                    # The bus of the server, so that its runs wake the workers.
                    environment = servers.environment(workspace, redis=True)
                    for _ in range(workers):
                        processes.enter_context(running(_WORKER, environment, servers.log))
                    await _until_hosted(server)
                    await _finish_runs(server, sizes.graph_clients, sizes.graph_clients)
                    await servers.checkpoint()
                    started = time.perf_counter()
                    await _finish_runs(server, sizes.graph_runs, sizes.graph_clients)
                    figure = sizes.graph_runs / (time.perf_counter() - started)
                    yield Sample("graphs", "runlane", rate(workers), repeat, "runs/s", [figure])
                    if workers == 1:
                        times = [await _first_event_ms(server) for _ in range(sizes.graph_streams)]
                        yield Sample("graphs", "runlane", FIRST_EVENT, repeat, "ms", times)


async def _until_hosted(server: ApiServer) -> None:
    """Wait until a worker has registered the graph."""
    async with asyncio.timeout(_READY_SECONDS), server.connection() as connection:
        # The server has no event for it.
        while (await connection.request("GET", "/assistants/three"))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _finish_runs(server: ApiServer, count: int, clients: int) -> None:
    """Start runs and wait for each, with as many clients."""
    share = max(1, count // clients)

    async def use(stack: AsyncExitStack) -> None:
        reader, writer = await asyncio.open_connection(HOST, server.port)
        stack.callback(writer.close)
        for _ in range(share):
            writer.write(_request(server, "/runs/wait"))
            answer = await _chunked(reader)
            if b'"value":4' not in answer:
                raise RuntimeError(f"A run returned {answer[:500]!r}")

    async with AsyncExitStack() as stack:
        await asyncio.gather(*(use(stack) for _ in range(clients)))


async def _first_event_ms(server: ApiServer) -> float:
    reader, writer = await asyncio.open_connection(HOST, server.port)
    try:
        started = time.perf_counter()
        writer.write(_request(server, "/runs/stream"))
        await reader.readuntil(b"event: ")
        found = time.perf_counter() - started
        await reader.readuntil(b"event: end")
        return found * 1000
    finally:
        writer.close()


def _request(server: ApiServer, path: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {HOST}:{server.port}\r\nauthorization: Bearer {server.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(_BODY)}\r\n\r\n"
    )
    return head.encode() + _BODY


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
