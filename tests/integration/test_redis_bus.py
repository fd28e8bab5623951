"""The bus over a real Redis: it comes back by itself, as fast the tenth time as the first."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import redis.asyncio as redis

from runlane.bus import redis as redis_bus
from runlane.bus.redis import RedisBus
from runlane.testing import RedisServer
from tests.harness import eventually


@pytest.fixture
def server() -> Generator[RedisServer]:
    with RedisServer() as server:
        yield server


async def test_an_outage_long_ago_does_not_make_the_next_one_longer(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waits grow while Redis is away, and begin anew with the next outage."""
    monkeypatch.setattr(redis_bus, "_BACK_OFF_SECONDS", (0.01, 3600.0))
    bus = RedisBus(server.url, "test")
    await bus.start()
    operator = redis.Redis.from_url(server.url)
    try:
        await eventually(lambda: bus.connected, "the first connection")
        for _ in range(3):
            lost = bus._pubsub
            assert await operator.execute_command("CLIENT", "KILL", "TYPE", "pubsub") == 1
            await eventually(lambda lost=lost: bus._pubsub not in (None, lost), "another connection")
    finally:
        await bus.stop()
        await operator.aclose()
