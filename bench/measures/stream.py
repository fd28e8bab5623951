"""Stream: how many events per second one serving process brings to one reader and to many, next to the yardstick.

Live: a run waits until its readers follow, then a worker writes its lines, a hundred to a transaction, and all of it
passes Postgres and Redis on its way. Replay: one reader gets a run that has ended, from Postgres. The yardstick sends
the very same frames out of memory, one by one, to as many readers (see bench/systems/starlette.py); both in turn.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncGenerator

import orjson

from bench.ground import Ground, Place
from bench.measures import SYSTEMS, Sizes
from bench.process import running
from bench.samples import Sample
from bench.serving import Served, free_port, listening, serving
from bench.wire import Caller, Follower, unchunked

LIVE_ONE, LIVE_MANY, REPLAY = "live, 1 follower", "live, many followers", "replay, 1 follower"
YARDSTICK = "starlette"
TOGETHER = 100
_PATIENCE_SECONDS = 300
_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Per repeat and variant: a sample of Runlane and one of the yardstick."""
    if not sizes.among("runlane"):
        return
    for repeat in range(sizes.repeats):
        with ground.place() as place, tempfile.NamedTemporaryFile(prefix="runlane-bench-") as frames:
            await SYSTEMS["runlane"](place).prepare()
            for variant, events, readers in (
                (LIVE_ONE, sizes.stream_events, 1),
                (LIVE_MANY, sizes.stream_events_many, sizes.stream_followers),
                (REPLAY, sizes.stream_events, 1),
            ):
                body, seconds = await _ours(ground, place, variant, events, readers)
                sent = len(_ID.findall(body)) * readers
                yield Sample("stream", "runlane", variant, repeat, "events/s", [sent / max(seconds, 1e-6)])
                frames.seek(0)
                frames.truncate()
                frames.write(body)
                frames.flush()
                seconds = await _yardstick(ground, place, readers, frames.name)
                yield Sample("stream", YARDSTICK, variant, repeat, "events/s", [sent / max(seconds, 1e-6)])


async def _ours(ground: Ground, place: Place, variant: str, events: int, readers: int) -> tuple[bytes, float]:
    """What each reader got, and the seconds that it took to bring it to all of them."""
    worker = SYSTEMS["runlane"](place).worker(None)
    async with serving(ground, place) as served, served.caller() as caller:
        with running(worker, ground.environment(place, redis=True), ground.log):
            body = orjson.dumps({"input": {"count": events, "together": TOGETHER}, "hold": True})
            run = orjson.loads(await caller.post("/api/v2/tasks/talk/run", body))
            if variant == REPLAY:
                await _release(caller, run["run_id"])
                await _ended(caller, run["run_id"])
                followers = await _open(served, run["stream_url"], readers)
            else:
                followers = await _open(served, run["stream_url"], readers)
                for follower in followers:
                    follower.start_clock()
                await _release(caller, run["run_id"])
            seconds = await _all_of(followers)
        body = unchunked(b"".join(data for _, data in followers[0].pieces))
        numbers = [int(number) for number in _ID.findall(body)]
        if numbers != list(range(numbers[0], numbers[-1] + 1)) or len(numbers) < events:
            raise RuntimeError(f"a reader got {len(numbers)} events, from {numbers[0]} to {numbers[-1]}")
        return body, seconds


async def _yardstick(ground: Ground, place: Place, readers: int, frames: str) -> float:
    port = free_port()
    command = ["-m", "bench.systems.starlette", str(port), frames]
    with running(command, ground.environment(place), ground.log):
        await listening(port)
        followers = [await Follower.open(port, "/stream", "") for _ in range(readers)]
        for follower in followers:
            follower.start_clock()
            follower.keep = False
        async with Caller(port, "") as caller:
            await caller.post("/go", b"")
        return await _all_of(followers)


async def _open(served: Served, path: str, readers: int) -> list[Follower]:
    followers = [await Follower.open(served.port, path, served.key) for _ in range(readers)]
    # One of them proves that everything arrives; the others only count.
    for follower in followers[1:]:
        follower.keep = False
    return followers


async def _release(caller: Caller, run_id: str) -> None:
    await caller.post(f"/api/v2/runs/{run_id}/approve", b"")


async def _ended(caller: Caller, run_id: str) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            _, answer = await caller.ask("GET", f"/api/v2/runs/{run_id}/wait?timeout_seconds=30")
            if orjson.loads(answer)["status"] == "completed":
                return


async def _all_of(followers: list[Follower]) -> float:
    """Wait for the end of every stream; the seconds from the first piece that anybody got to the last."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        for follower in followers:
            await follower.ended.wait()
    return (max(f.last_at for f in followers) - min(f.first_at for f in followers)) / 1e9
