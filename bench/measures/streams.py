"""Streams: stored events per second to 1 and to 200 followers, and how long a new event takes from commit to follower.

The yardstick is a bare Starlette stream that sends the very same frames to as many followers, in turn with ours. The
latency is the follower's clock minus the database's time of the event, on one machine; with Redis and without.
"""

from __future__ import annotations

import asyncio
import datetime
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from bench.ground import Ground, Place
from bench.measures import SYSTEMS, Sizes
from bench.process import clean_environment, running
from bench.samples import Sample
from bench.serving import PATIENCE_SECONDS, Wire, free_port, serving

FOLLOWERS = (1, 200)
BARE = "starlette"
LATENCIES = ("with Redis", "without Redis")
_LAST = b'"type":"done"'


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Per repeat: a rate for each number of followers and system, and latencies with and without Redis."""
    if not sizes.among("runlane"):
        return
    for repeat in range(sizes.repeats):
        with ground.place() as place, tempfile.TemporaryDirectory() as folder:
            await SYSTEMS["runlane"](place).prepare()
            async with serving(ground, place, worker=True) as port:
                path = await _written(port, sizes.events)
                frames = Path(folder) / "frames"
                frames.write_bytes(await _frames(port, path))
                async with _bare(ground, frames) as bare_port:
                    for count in FOLLOWERS:
                        for name, at, where in (("runlane", port, path), (BARE, bare_port, "/stream")):
                            rate = await _rate(at, where, count, sizes.events)
                            yield Sample("streams", name, f"{count} followers", repeat, "events/s", [rate])
        for variant in LATENCIES:
            with ground.place() as place:
                await SYSTEMS["runlane"](place).prepare()
                values = await _latencies(ground, place, sizes.live_events, redis=variant == LATENCIES[0])
                yield Sample("streams", "runlane", f"latency {variant}", repeat, "ms", values)


async def _written(port: int, events: int) -> str:
    """A finished run with so many lines; the path of its stream."""
    wire = await Wire.open(port)
    _, run = await wire.ask("POST", "/api/v2/tasks/chatter/run", {"input": {"lines": events, "pause": 0}})
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await wire.ask("GET", run["status_url"]))[1]["status"] != "completed":  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)
    wire.close()
    return str(run["stream_url"])


async def _frames(port: int, path: str) -> bytes:
    wire = await Wire.open(port)
    content = await _whole(wire, path)
    wire.close()
    # Chunked: the sizes stand on lines of their own between the pieces.
    pieces: list[bytes] = []
    while content:
        size, _, rest = content.partition(b"\r\n")
        length = int(size, 16)
        pieces.append(rest[:length])
        content = rest[length + 2 :] if length else b""
    return b"".join(pieces)


async def _whole(wire: Wire, path: str) -> bytes:
    reader = await wire.follow(path)
    return await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), PATIENCE_SECONDS)


@asynccontextmanager
async def _bare(ground: Ground, frames: Path) -> AsyncGenerator[int]:
    port = free_port()
    command = ["-m", "uvicorn", "bench.bare:app", "--port", str(port), "--log-level", "warning"]
    with running(command, clean_environment({"BENCH_FRAMES": str(frames)}), ground.log):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    (await Wire.open(port)).close()
                    break
                except OSError:
                    await asyncio.sleep(0.1)
        yield port


async def _rate(port: int, path: str, followers: int, events: int) -> float:
    async def follow(wire: Wire) -> None:
        reader = await wire.follow(path)
        while _LAST not in (piece := await asyncio.wait_for(reader.read(2**18), PATIENCE_SECONDS)):
            if not piece:
                raise RuntimeError("a stream broke off")

    wires = [await Wire.open(port) for _ in range(followers)]
    began = time.perf_counter()
    await asyncio.gather(*(follow(wire) for wire in wires))
    seconds = time.perf_counter() - began
    for wire in wires:
        wire.close()
    return followers * events / seconds


async def _latencies(ground: Ground, place: Place, count: int, *, redis: bool) -> list[float]:
    """Milliseconds from an event's commit to its arrival; the first ones pay for what is made once."""
    values: list[float] = []
    async with serving(ground, place, redis=redis, worker=True) as port:
        asking, following = await Wire.open(port), await Wire.open(port)
        body = {"input": {"lines": count + 10, "pause": 0.02}, "hold": True}
        _, run = await asking.ask("POST", "/api/v2/tasks/chatter/run", body)
        reader = await following.follow(run["stream_url"])
        await asking.ask("POST", f"/api/v2/runs/{run['run_id']}/approve", {})
        while True:
            line = await asyncio.wait_for(reader.readline(), PATIENCE_SECONDS)
            now = time.time()
            if not line.startswith(b"data: "):
                continue
            event = orjson.loads(line[6:])
            if event["type"] == "done":
                break
            if event["type"] == "log":
                at = datetime.datetime.fromisoformat(event["at"]).timestamp()
                values.append((now - at) * 1000)
        asking.close()
        following.close()
    return values[10:]
