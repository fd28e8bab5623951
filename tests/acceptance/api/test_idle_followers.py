"""Very many readers of runs in which nothing happens: what they cost the process that serves them."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import httpx2
import pytest

from runlane.settings import Settings
from runlane.testing import RedisServer
from tests.acceptance.api.serving import API, process
from tests.harness import eventually, settings_for

FOLLOWERS = 300
# Measured: 15 kB here, 16 kB with 2,000 of them (bench/README.md). Half as much again is more than noise.
MOST_BYTES = 24_000


@pytest.fixture
def redis() -> Generator[RedisServer]:
    """A server without connections of other tests."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def settings(postgres_url: str, redis: RedisServer) -> Settings:
    return settings_for(postgres_url, redis_url=redis.url)


def connections(redis: RedisServer) -> list[dict[str, str]]:
    """Return the connections of other clients that Redis lists."""
    with socket.create_connection(("127.0.0.1", redis.port), timeout=10) as link:
        link.sendall(b"CLIENT LIST\r\nQUIT\r\n")
        listing = b"".join(iter(lambda: link.recv(65536), b"")).decode()
    rows = [
        dict(pair.split("=", 1) for pair in line.split()) for line in listing.splitlines() if line.startswith("id=")
    ]
    return [row for row in rows if row["cmd"] != "client|list"]


def subscriptions(redis: RedisServer) -> list[int]:
    """Of each connection that has some, how many."""
    return [int(row["sub"]) for row in connections(redis) if row["sub"] != "0"]


@asynccontextmanager
async def following(url: str, run_ids: list[str]) -> AsyncGenerator[None]:
    """Open readers that have read every event and wait for more."""
    port = int(url.rsplit(":", 1)[1])
    opened: list[asyncio.StreamWriter] = []
    try:
        for run_id in run_ids:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            opened.append(writer)
            writer.write(f"GET {API}/runs/{run_id}/stream HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode())
            await asyncio.wait_for(reader.readuntil(b'"type":"queued"'), 60)
        yield
    finally:
        for writer in opened:
            writer.close()
            await writer.wait_closed()


async def test_followers_cost_little_memory_and_no_connections(settings: Settings, redis: RedisServer) -> None:
    with process("serve", "tests.acceptance.api.shop:app", "--port", "0", settings=settings) as server:
        url = server.wait_for("serving")["url"]
        server.wait_for("redis_connected")
        async with httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:

            async def metric(name: str) -> float:
                found = re.search(rf"^{name} (\S+)$", (await client.get("/metrics")).text, re.MULTILINE)
                assert found is not None, name
                return float(found[1])

            async def followed_by(count: int) -> bool:
                return await metric("runlane_followers") == count

            held = [{"task": "greet", "hold": True}] * FOLLOWERS
            answer = await client.post(f"{API}/runs/batch", json={"runs": held})
            run_ids = [run["run_id"] for run in answer.json()["runs"]]
            # The first ones pay for what is there once: code that is loaded late, buffers, prepared statements.
            async with following(url, run_ids[:50]):
                await eventually(lambda: followed_by(50), "the first followers")
            await eventually(lambda: followed_by(0), "no follower")
            before, used = connections(redis), await metric("process_resident_memory_bytes")
            async with following(url, run_ids):
                await eventually(lambda: followed_by(FOLLOWERS), "every follower")
                # Every run, and the channel of cancels, over one connection.
                await eventually(lambda: subscriptions(redis) == [FOLLOWERS + 1], "every subscription")
                during = connections(redis)
                more = await metric("process_resident_memory_bytes") - used
                assert {row["id"] for row in during} == {row["id"] for row in before}
                assert len(during) <= 3
            assert more / FOLLOWERS <= MOST_BYTES, f"{more / FOLLOWERS / 1000:.1f} kB for each follower"
            print(f"{more / FOLLOWERS / 1000:.1f} kB for each follower")
