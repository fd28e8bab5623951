"""Idle followers: what followers of idle runs cost the API process.

One `runlane serve` with Redis. The followers are plain sockets of this process that have read every event. In one
variant they follow one run, in the other each follows its own run, which also costs the server a feed and a
subscription.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx2

from bench.measures import SYSTEMS, Sizes
from bench.process import memory_mb, running
from bench.samples import Sample
from bench.servers import Servers, Workspace

_TIMEOUT_SECONDS = 60
_AT_ONCE = 50
# Followers that cause the one-time costs of a server.
FIRST = 100
_QUEUED = b'"type":"queued"'
VARIANTS = ("one run", "a run each")
WITHOUT, WITH = ", none", ", all"


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield per repeat and variant the memory per follower, and the Redis connections without and with followers."""
    if not sizes.select("runlane"):
        return
    allow_open_files(sizes.followers + 1000)
    for repeat in range(sizes.repeats):
        for variant in VARIANTS:
            with servers.workspace() as workspace:
                await SYSTEMS["runlane"](workspace).prepare()
                kilobytes, before, during = await _measure_followers(servers, workspace, sizes, variant)
            yield Sample("followers", "runlane", variant, repeat, "kB", [kilobytes])
            for when, connections in ((WITHOUT, before), (WITH, during)):
                yield Sample("followers", "runlane", variant + when, repeat, "Redis connections", [connections])


async def _measure_followers(
    servers: Servers, workspace: Workspace, sizes: Sizes, variant: str
) -> tuple[float, int, int]:
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        **servers.environment(workspace),
        "RUNLANE_REDIS_URL": workspace.redis_url,
        "RUNLANE_REDIS_PREFIX": workspace.queue,
    }
    command = ["-m", "runlane", "serve", "bench.systems.runlane:app", "--port", str(port)]
    with running(command, environment, servers.log) as server:
        async with httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            await _wait_until_ready(client)
            paths = await _create_held_runs(client, 1 if variant == VARIANTS[0] else sizes.followers)
            # The first followers cause one-time costs: late imports, buffers, prepared statements.
            async with following(port, (paths * FIRST)[:FIRST], _QUEUED):
                pass
            await _wait_for_followers(client, 0)
            before, (used, _) = _redis_connections(workspace), memory_mb(server.pid)
            async with following(port, (paths * sizes.followers)[: sizes.followers], _QUEUED):
                await _wait_for_followers(client, sizes.followers)
                await asyncio.sleep(sizes.idle_seconds)
                more_mb = memory_mb(server.pid)[0] - used
                return more_mb * 1024 / sizes.followers, before, _redis_connections(workspace)


async def _wait_until_ready(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        while True:
            try:
                answer = await client.get("/ready")
                if answer.json().get("redis") == "connected":
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.1)


async def _create_held_runs(client: httpx2.AsyncClient, count: int) -> list[str]:
    """Create runs that wait for approval, and return the paths of their streams."""
    paths: list[str] = []
    while len(paths) < count:
        runs = [{"task": "noop", "input": {"key": 0}, "hold": True}] * min(1000, count - len(paths))
        answer = await client.post("/api/v2/runs/batch", json={"runs": runs})
        paths += [run["stream_url"] for run in answer.raise_for_status().json()["runs"]]
    return paths


@asynccontextmanager
async def following(port: int, paths: list[str], until: bytes, head: str = "") -> AsyncGenerator[None]:
    """Follow streams with a socket each, which have received this; `head` are further lines of the requests."""
    opened: list[asyncio.StreamWriter] = []

    async def follow(path: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append(writer)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n{head}\r\n".encode())
        await asyncio.wait_for(reader.readuntil(until), _TIMEOUT_SECONDS)

    try:
        for first in range(0, len(paths), _AT_ONCE):
            await asyncio.gather(*(follow(path) for path in paths[first : first + _AT_ONCE]))
        yield
    finally:
        for writer in opened:
            writer.transport.abort()


async def _wait_for_followers(client: httpx2.AsyncClient, count: int) -> None:
    """Wait until the server reports this number of followers."""
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        while f"\nrunlane_followers {float(count)}\n" not in (await client.get("/metrics")).text:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)


def _redis_connections(workspace: Workspace) -> int:
    parts = urlsplit(workspace.redis_url)
    with socket.create_connection((parts.hostname or "", parts.port or 6379), timeout=10) as connection:
        connection.sendall(b"CLIENT LIST\r\nQUIT\r\n")
        response = b"".join(iter(lambda: connection.recv(65536), b""))
    return sum(line.startswith(b"id=") for line in response.splitlines()) - 1


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def allow_open_files(wanted: int) -> None:
    """Raise the limit of open files for this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard > 0 else wanted, hard))
