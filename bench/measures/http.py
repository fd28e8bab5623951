"""HTTP: how many runs one API process takes per second; stored when the answer comes.

The client is plain sockets in this process: one connection with one request at a time, many connections, and batches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from bench.ground import Ground
from bench.measures import SYSTEMS, Sizes
from bench.samples import Sample
from bench.serving import Wire, serving

VARIANTS = ("one at a time", "50 clients", "batches of 100")
_CLIENTS = 50
_BATCH = 100
_PATH = "/api/v2/tasks/noop/run"
_BODY = {"input": {"key": 1}}


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Three samples per repeat."""
    if not sizes.among("runlane"):
        return
    for repeat in range(sizes.repeats):
        with ground.place() as place:
            await SYSTEMS["runlane"](place).prepare()
            async with serving(ground, place) as port:
                wires = [await Wire.open(port) for _ in range(_CLIENTS)]
                await asyncio.gather(*(_one_by_one(wire, 4) for wire in wires))
                await ground.settle()
                for variant, rate in zip(VARIANTS, await _rates(wires, sizes.http_accepts), strict=True):
                    yield Sample("http", "runlane", variant, repeat, "runs/s", [rate])
                for wire in wires:
                    wire.close()


async def _rates(wires: list[Wire], count: int) -> list[float]:
    began = time.perf_counter()
    await _one_by_one(wires[0], count)
    alone = count / (time.perf_counter() - began)
    each = count * 5 // len(wires)
    began = time.perf_counter()
    await asyncio.gather(*(_one_by_one(wire, each) for wire in wires))
    many = each * len(wires) / (time.perf_counter() - began)
    batches = max(1, count // 10)
    body = {"runs": [{"task": "noop", **_BODY}] * _BATCH}
    began = time.perf_counter()
    for _ in range(batches):
        status, told = await wires[0].ask("POST", "/api/v2/runs/batch", body)
        _check(status, told)
    return [alone, many, batches * _BATCH / (time.perf_counter() - began)]


async def _one_by_one(wire: Wire, count: int) -> None:
    for _ in range(count):
        status, told = await wire.ask("POST", _PATH, _BODY)
        _check(status, told)


def _check(status: int, told: object) -> None:
    if status != 202:
        raise RuntimeError(f"a run was not accepted: {status} {told}")
