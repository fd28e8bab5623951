"""Accept: how many runs one client submits per second, one at a time and in bulk; stored when the call returns.

The clients alternate in short rounds, so that other load on the machine affects all systems alike.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack

from bench.measures import SYSTEMS, Sizes
from bench.samples import Sample
from bench.servers import Servers
from bench.systems import Client

# Connections, prepared statements and caches exist before the measurement starts.
_WARM_UP = 50
_ROUNDS = 10


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield two samples per repeat and system, or one for a system without a bulk call."""
    for repeat in range(sizes.repeats):
        async with AsyncExitStack() as stack:
            clients: dict[str, Client] = {}
            bulk: dict[str, Client] = {}
            # DBOS is a peer of the steps alone.
            for name in (one for one in sizes.systems if one in SYSTEMS):
                system = SYSTEMS[name](stack.enter_context(servers.workspace()))
                await system.prepare()
                clients[name] = await stack.enter_async_context(system.client())
                await _one_at_a_time(clients[name], _WARM_UP)
                if system.bulk:
                    bulk[name] = clients[name]
            await servers.checkpoint()
            for name, rate in (await _alternate(clients, _one_at_a_time, sizes.accept_one)).items():
                yield Sample("accept", name, "one at a time", repeat, "runs/s", [rate])
            for name, rate in (await _alternate(bulk, _in_bulk, sizes.accept_many)).items():
                yield Sample("accept", name, "bulk", repeat, "runs/s", [rate])


async def _alternate(
    clients: dict[str, Client], submit: Callable[[Client, int], Awaitable[None]], count: int
) -> dict[str, float]:
    seconds: Counter[str] = Counter()
    share = count // _ROUNDS
    for _ in range(_ROUNDS):
        for name, client in clients.items():
            started = time.perf_counter_ns()
            await submit(client, share)
            seconds[name] += time.perf_counter_ns() - started
    return {name: share * _ROUNDS * 1e9 / spent for name, spent in seconds.items()}


async def _one_at_a_time(client: Client, count: int) -> None:
    for key in range(count):
        await client.accept("noop", key)


async def _in_bulk(client: Client, count: int) -> None:
    await client.accept_many(count)
