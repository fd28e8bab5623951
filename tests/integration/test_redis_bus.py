"""The bus over a real Redis: it reconnects by itself, as fast the tenth time as the first."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator

import pytest
import redis.asyncio as redis

from runlane.bus import redis as redis_bus
from runlane.bus.redis import RedisBus
from runlane.domain.events import Delta, Notice, StoredEvent
from runlane.testing import RedisServer
from tests.harness import eventually


@pytest.fixture
def server() -> Generator[RedisServer]:
    with RedisServer() as server:
        yield server


async def test_an_outage_long_ago_does_not_make_the_next_one_longer(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waits grow while Redis is away, and restart with the next outage."""
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


async def test_readers_that_come_and_go_do_not_disturb_a_bus_that_is_coming_back(server: RedisServer) -> None:
    """Subscriptions change all the time, even while their connection breaks and is restored."""
    unhandled: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(str(context)))
    bus, other = RedisBus(server.url, "test"), RedisBus(server.url, "test")
    await bus.start()
    await other.start()
    operator = redis.Redis.from_url(server.url)
    stop = asyncio.Event()

    async def come_and_go() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            leave = bus.follow(f"run_{number % 50}", lambda message: None)
            await asyncio.sleep(0)
            leave()

    coming = [asyncio.create_task(come_and_go()) for _ in range(5)]
    received: list[Notice | Delta] = []
    bus.follow("run_stays", received.append)
    try:
        for _ in range(100):
            await eventually(lambda: bus.connected, "a connection")
            await operator.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*coming)

        def has_arrived() -> bool:
            other.publish([Notice("run_stays", 1, (StoredEvent(1, "log", 1, 0, "{}"),))])
            return any(isinstance(message, Notice) and message.lines for message in received)

        await eventually(has_arrived, "what the other process says")
    finally:
        stop.set()
        await bus.stop()
        await other.stop()
        await operator.aclose()
    gc.collect()
    assert unhandled == []
