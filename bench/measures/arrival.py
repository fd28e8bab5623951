"""Arrival: the time from the commit of an event in a worker to its arrival at a follower.

Worker, server and follower are three processes. The worker logs a line, records the time when that call returns, and
sleeps for a random time. The server is notified over Redis, or over Postgres without it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import orjson

from bench.http_client import Follower
from bench.measures import SYSTEMS, Sizes
from bench.process import running
from bench.samples import Sample
from bench.server import serving
from bench.servers import Servers, Workspace

WITH, WITHOUT = "with Redis", "without Redis"
_TIMEOUT_SECONDS = 60
_NUMBER = re.compile(rb'"fields":\{"number":(\d+)\}')


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield per repeat the times of all events, with and without Redis."""
    if not sizes.select("runlane"):
        return
    for repeat in range(sizes.repeats):
        for variant, count in ((WITH, sizes.arrivals), (WITHOUT, sizes.arrivals_polled)):
            with servers.workspace() as workspace:
                await SYSTEMS["runlane"](workspace).prepare()
                times = await _times(servers, workspace, count, redis=variant == WITH)
            yield Sample("arrival", "runlane", variant, repeat, "ms", times)


async def _times(servers: Servers, workspace: Workspace, count: int, *, redis: bool) -> list[float]:
    worker = SYSTEMS["runlane"](workspace).worker(None)
    warm_up = min(10, count)
    # Without Redis the pauses are longer than the interval at which a server without wake-ups polls.
    longest = 0.05 if redis else 0.4
    servers.receiver.clear()
    with running(worker, servers.environment(workspace, redis=redis), servers.log):
        async with serving(servers, workspace, redis=redis) as server, server.connection() as connection:
            body = orjson.dumps({"input": {"count": warm_up + count, "longest": longest}, "hold": True})
            run = orjson.loads(await connection.post("/api/v2/tasks/tick/run", body))
            follower = await Follower.open(server.port, run["stream_url"], server.key)
            await connection.post(f"/api/v2/runs/{run['run_id']}/approve", b"")
            committed = {
                number: (await servers.receiver.next("committed", number, _TIMEOUT_SECONDS)).at_ns
                for number in range(warm_up + count)
            }
            await follower.ended.wait()
    arrived = {int(n): at for at, data in follower.chunks for n in _NUMBER.findall(data)}
    return [(arrived[number] - committed[number]) / 1e6 for number in range(warm_up, warm_up + count)]
