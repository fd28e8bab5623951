"""HTTP: how many runs one API process accepts per second; each is stored when its response is sent.

One client that waits for each response, many such clients concurrently, and one client that submits a thousand runs per
request. Every connection is kept alive and every request has a key, which the server looks up each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import orjson

from bench.http_client import HttpConnection
from bench.measures import SYSTEMS, Sizes
from bench.samples import Sample
from bench.server import ApiServer, serving
from bench.servers import Servers

ONE, MANY, BATCH = "one client", "many clients", "batches"
_RUN = orjson.dumps({"input": {"key": 1}})
_BATCH_SIZE = 1_000
_WARM_UP = 50


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield three samples per repeat."""
    if not sizes.select("runlane"):
        return
    for repeat in range(sizes.repeats):
        with servers.workspace() as workspace:
            await SYSTEMS["runlane"](workspace).prepare()
            async with serving(servers, workspace) as server, server.connection() as connection:
                await _start_runs(connection, _WARM_UP)
                await servers.checkpoint()
                started = time.perf_counter()
                await _start_runs(connection, sizes.http_one)
                yield Sample("http", "runlane", ONE, repeat, "runs/s", [sizes.http_one / _since(started)])
                yield Sample("http", "runlane", MANY, repeat, "runs/s", [await _measure_many(server, sizes)])
                await servers.checkpoint()
                started = time.perf_counter()
                batches = max(1, sizes.http_batched // _BATCH_SIZE)
                size = min(_BATCH_SIZE, sizes.http_batched)
                for _ in range(batches):
                    await _start_batch(connection, size)
                yield Sample("http", "runlane", BATCH, repeat, "runs/s", [batches * size / _since(started)])


async def _measure_many(server: ApiServer, sizes: Sizes) -> float:
    share = sizes.http_many // sizes.http_clients
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(server.connection()) for _ in range(sizes.http_clients)]
        await asyncio.gather(*(_start_runs(connection, 2) for connection in connections))
        started = time.perf_counter()
        await asyncio.gather(*(_start_runs(connection, share) for connection in connections))
        return share * sizes.http_clients / _since(started)


async def _start_runs(connection: HttpConnection, count: int) -> None:
    for _ in range(count):
        await connection.post("/api/v2/tasks/noop/run", _RUN)


async def _start_batch(connection: HttpConnection, size: int) -> None:
    body = orjson.dumps({"runs": [{"task": "noop", "input": {"key": key}} for key in range(size)]})
    answer = orjson.loads(await connection.post("/api/v2/runs/batch", body))
    if answer["count"] != size:
        raise RuntimeError(f"{answer['count']} of {size} runs were accepted")


def _since(started: float) -> float:
    return time.perf_counter() - started
