"""HTTP: how many runs one serving process accepts per second; each is stored when its answer is sent.

One client that waits for each answer, many such clients at once, and one client that hands in a thousand with each
request. Every connection is kept alive and every request carries a key, which the server looks up each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import orjson

from bench.ground import Ground
from bench.measures import SYSTEMS, Sizes
from bench.samples import Sample
from bench.serving import Served, serving
from bench.wire import Caller

ONE, MANY, BATCH = "one client", "many clients", "batches"
_RUN = orjson.dumps({"input": {"key": 1}})
_A_BATCH = 1_000
_WARM_UP = 50


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Three samples per repeat."""
    if not sizes.among("runlane"):
        return
    for repeat in range(sizes.repeats):
        with ground.place() as place:
            await SYSTEMS["runlane"](place).prepare()
            async with serving(ground, place) as served, served.caller() as caller:
                await _runs(caller, _WARM_UP)
                await ground.settle()
                started = time.perf_counter()
                await _runs(caller, sizes.http_one)
                yield Sample("http", "runlane", ONE, repeat, "runs/s", [sizes.http_one / _since(started)])
                yield Sample("http", "runlane", MANY, repeat, "runs/s", [await _many(served, sizes)])
                await ground.settle()
                started = time.perf_counter()
                batches = max(1, sizes.http_batched // _A_BATCH)
                size = min(_A_BATCH, sizes.http_batched)
                for _ in range(batches):
                    await _batch(caller, size)
                yield Sample("http", "runlane", BATCH, repeat, "runs/s", [batches * size / _since(started)])


async def _many(served: Served, sizes: Sizes) -> float:
    share = sizes.http_many // sizes.http_clients
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(served.caller()) for _ in range(sizes.http_clients)]
        await asyncio.gather(*(_runs(caller, 2) for caller in callers))
        started = time.perf_counter()
        await asyncio.gather(*(_runs(caller, share) for caller in callers))
        return share * sizes.http_clients / _since(started)


async def _runs(caller: Caller, count: int) -> None:
    for _ in range(count):
        await caller.post("/api/v2/tasks/noop/run", _RUN)


async def _batch(caller: Caller, size: int) -> None:
    body = orjson.dumps({"runs": [{"task": "noop", "input": {"key": key}} for key in range(size)]})
    answer = orjson.loads(await caller.post("/api/v2/runs/batch", body))
    if answer["count"] != size:
        raise RuntimeError(f"{answer['count']} of {size} runs were accepted")


def _since(started: float) -> float:
    return time.perf_counter() - started
