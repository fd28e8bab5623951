"""Accept: how many runs one client hands in per second, one at a time and in bulk; stored when the call returns."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from bench.ground import Ground
from bench.measures import SYSTEMS, Sizes
from bench.samples import Sample

# Connections, prepared statements and caches are there before the clock starts.
_WARM_UP = 50


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Two samples per repeat and system; one for a system without a bulk call."""
    for repeat in range(sizes.repeats):
        for name in sizes.systems:
            with ground.place() as place:
                system = SYSTEMS[name](place)
                await system.prepare()
                await ground.settle()
                async with system.client() as client:
                    for key in range(_WARM_UP):
                        await client.accept("noop", key)
                    started = time.perf_counter()
                    for key in range(sizes.accept_one):
                        await client.accept("noop", key)
                    rate = sizes.accept_one / (time.perf_counter() - started)
                    yield Sample("accept", name, "one at a time", repeat, "runs/s", [rate])
                    if system.bulk:
                        started = time.perf_counter()
                        await client.accept_many(sizes.accept_many)
                        rate = sizes.accept_many / (time.perf_counter() - started)
                        yield Sample("accept", name, "bulk", repeat, "runs/s", [rate])
