"""Arrival: from the moment in which a worker knows that an event is committed to the moment in which a reader has it.

Worker, server and reader are three processes. The worker writes a line, notes the time when that call returns, and
pauses for a random while. With Redis the news travel at once; without it the server asks the database.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import orjson

from bench.ground import Ground, Place
from bench.measures import SYSTEMS, Sizes
from bench.process import running
from bench.samples import Sample
from bench.serving import serving
from bench.wire import Follower

WITH, WITHOUT = "with Redis", "without Redis"
_PATIENCE_SECONDS = 60
_NUMBER = re.compile(rb'"fields":\{"number":(\d+)\}')


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Per repeat: the times of each event with Redis, and without."""
    if not sizes.among("runlane"):
        return
    for repeat in range(sizes.repeats):
        for variant, count in ((WITH, sizes.arrivals), (WITHOUT, sizes.arrivals_polled)):
            with ground.place() as place:
                await SYSTEMS["runlane"](place).prepare()
                times = await _times(ground, place, count, redis=variant == WITH)
            yield Sample("arrival", "runlane", variant, repeat, "ms", times)


async def _times(ground: Ground, place: Place, count: int, *, redis: bool) -> list[float]:
    worker = SYSTEMS["runlane"](place).worker(None)
    warm_up = min(10, count)
    # Where the server asks, the pauses are longer than its interval, so that an event falls anywhere in it.
    longest = 0.05 if redis else 0.4
    ground.mailbox.empty()
    with running(worker, ground.environment(place, redis=redis), ground.log):
        async with serving(ground, place, redis=redis) as served, served.caller() as caller:
            body = orjson.dumps({"input": {"count": warm_up + count, "longest": longest}, "hold": True})
            run = orjson.loads(await caller.post("/api/v2/tasks/tick/run", body))
            follower = await Follower.open(served.port, run["stream_url"], served.key)
            await caller.post(f"/api/v2/runs/{run['run_id']}/approve", b"")
            committed = {
                number: (await ground.mailbox.next("committed", number, _PATIENCE_SECONDS)).at_ns
                for number in range(warm_up + count)
            }
            await follower.ended.wait()
    arrived = {int(n): at for at, data in follower.pieces for n in _NUMBER.findall(data)}
    return [(arrived[number] - committed[number]) / 1e6 for number in range(warm_up, warm_up + count)]
