"""Idle followers: what readers of runs in which nothing happens cost the process that serves them.

One `runlane serve` with Redis. The readers are plain sockets of this process; each has read what there is and listens.
Once all of them follow one run, once each a run of its own, which also costs the server a feed and a subscription.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx2

from bench.ground import Ground, Place
from bench.measures import SYSTEMS, Sizes
from bench.process import memory_mb, running
from bench.samples import Sample

_PATIENCE_SECONDS = 60
_AT_ONCE = 50
_FIRST = 100
VARIANTS = ("one run", "a run each")
WITHOUT, WITH = ", nobody", ", all"


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Per repeat and variant: memory for each follower, and the connections to Redis without and with them."""
    if not sizes.among("runlane"):
        return
    _allow_open_files(sizes.followers + 1000)
    for repeat in range(sizes.repeats):
        for variant in VARIANTS:
            with ground.place() as place:
                await SYSTEMS["runlane"](place).prepare()
                kilobytes, before, during = await _followed(ground, place, sizes, variant)
            yield Sample("followers", "runlane", variant, repeat, "kB", [kilobytes])
            for when, connections in ((WITHOUT, before), (WITH, during)):
                yield Sample("followers", "runlane", variant + when, repeat, "Redis connections", [connections])


async def _followed(ground: Ground, place: Place, sizes: Sizes, variant: str) -> tuple[float, int, int]:
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        **ground.environment(place),
        "RUNLANE_REDIS_URL": place.redis_url,
        "RUNLANE_REDIS_PREFIX": place.queue,
    }
    command = ["-m", "runlane", "serve", "bench.systems.runlane:app", "--port", str(port)]
    with running(command, environment, ground.log) as server:
        async with httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            await _ready(client)
            paths = await _held(client, 1 if variant == VARIANTS[0] else sizes.followers)
            # The first ones pay for what is there once: code that is loaded late, buffers, prepared statements.
            async with _following(port, (paths * _FIRST)[:_FIRST]):
                pass
            await _followers(client, 0)
            before, (used, _) = _redis_connections(place), memory_mb(server.pid)
            async with _following(port, (paths * sizes.followers)[: sizes.followers]):
                await _followers(client, sizes.followers)
                await asyncio.sleep(sizes.idle_seconds)
                more_mb = memory_mb(server.pid)[0] - used
                return more_mb * 1024 / sizes.followers, before, _redis_connections(place)


async def _ready(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            try:
                answer = await client.get("/ready")
                if answer.json().get("redis") == "connected":
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.1)


async def _held(client: httpx2.AsyncClient, count: int) -> list[str]:
    """Runs that wait for an approval; the paths of their streams."""
    paths: list[str] = []
    while len(paths) < count:
        runs = [{"task": "noop", "input": {"key": 0}, "hold": True}] * min(1000, count - len(paths))
        answer = await client.post("/api/v2/runs/batch", json={"runs": runs})
        paths += [run["stream_url"] for run in answer.raise_for_status().json()["runs"]]
    return paths


@asynccontextmanager
async def _following(port: int, paths: list[str]) -> AsyncGenerator[None]:
    opened: list[asyncio.StreamWriter] = []

    async def follow(path: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append(writer)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode())
        await asyncio.wait_for(reader.readuntil(b'"type":"queued"'), _PATIENCE_SECONDS)

    try:
        for first in range(0, len(paths), _AT_ONCE):
            await asyncio.gather(*(follow(path) for path in paths[first : first + _AT_ONCE]))
        yield
    finally:
        for writer in opened:
            writer.transport.abort()


async def _followers(client: httpx2.AsyncClient, count: int) -> None:
    """Wait until the server counts so many."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while f"\nrunlane_followers {float(count)}\n" not in (await client.get("/metrics")).text:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)


def _redis_connections(place: Place) -> int:
    parts = urlsplit(place.redis_url)
    with socket.create_connection((parts.hostname or "", parts.port or 6379), timeout=10) as link:
        link.sendall(b"CLIENT LIST\r\nQUIT\r\n")
        told = b"".join(iter(lambda: link.recv(65536), b""))
    return sum(line.startswith(b"id=") for line in told.splitlines()) - 1


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _allow_open_files(wanted: int) -> None:
    """For this process and those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard > 0 else wanted, hard))
