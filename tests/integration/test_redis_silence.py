"""A Redis that is frozen or cut off sends and closes nothing: the bus must detect it, and reconnect."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from runlane.bus import redis as redis_bus
from runlane.bus.redis import RedisBus
from runlane.bus.redis_client import OneServer
from runlane.domain.events import Delta, Notice, StoredEvent
from runlane.testing import RedisServer
from tests.harness import eventually


@contextmanager
def frozen(server: RedisServer) -> Generator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_a_frozen_server_is_noticed_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_bus, "QUIET_SECONDS", 0.2)
    with RedisServer() as server:
        bus, other = RedisBus(server.url, "test"), RedisBus(server.url, "test")
        received: list[Notice | Delta] = []
        bus.follow("run_1", received.append)
        try:
            for each in (bus, other):
                await each.start()
            await eventually(lambda: bus.connected and other.connected, "the connection")
            with frozen(server):
                await eventually(lambda: not bus.connected, "the silence is noticed")
                # Publishers and waiters are not held up meanwhile.
                bus.ring(["default"])
                bus.publish([Notice("run_1", 1)])
                assert not await bus.listen(None).wait(["default"], 0.05)
            await eventually(lambda: bus.connected and other.connected, "the connection is back")
            notice = Notice("run_1", 2, (StoredEvent(2, "log", 1, 0, "{}"),))

            async def arrives() -> bool:
                other.publish([notice])
                await asyncio.sleep(0.02)
                return notice in received

            await eventually(arrives, "events arrive again")
        finally:
            await bus.stop()
            await other.stop()


async def test_a_quiet_server_is_not_taken_for_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # Also how long an answer may take: a busy machine must not look like silence.
    monkeypatch.setattr(redis_bus, "QUIET_SECONDS", 1.0)
    with RedisServer() as server:
        bus = RedisBus(server.url, "test")
        await bus.start()
        try:
            await eventually(lambda: bus.connected, "the connection")
            first, pings = bus._pubsub, 0
            ping = first.ping

            async def counted() -> None:
                nonlocal pings
                await ping()
                pings += 1

            monkeypatch.setattr(first, "ping", counted)
            await eventually(lambda: pings >= 3, "some silences")
            assert bus._pubsub is first
        finally:
            await bus.stop()


async def test_a_listener_that_joins_during_the_subscription_gets_messages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    subscribing, go_on = asyncio.Event(), asyncio.Event()
    subscribe = OneServer.subscribe

    async def slowly(self: OneServer, channels: list[str]) -> Any:
        made = await subscribe(self, channels)
        subscribing.set()
        await go_on.wait()
        return made

    monkeypatch.setattr(OneServer, "subscribe", slowly)
    with RedisServer() as server:
        bus, other = RedisBus(server.url, "test"), RedisBus(server.url, "test")
        received: dict[str, list[Notice | Delta]] = {"run_early": [], "run_late": []}
        leave = bus.follow("run_early", received["run_early"].append)
        try:
            await bus.start()
            await subscribing.wait()
            bus.follow("run_late", received["run_late"].append)
            leave()
            go_on.set()
            await other.start()
            await eventually(lambda: bus.connected and other.connected, "the connection")
            # It gets one signal to read, once it receives everything that comes after.
            await eventually(lambda: Notice("run_late", -1) in received["run_late"], "it is subscribed")
            other.publish([Notice("run_late", 5), Notice("run_early", 5)])
            await eventually(lambda: Notice("run_late", 5) in received["run_late"], "its notice")
            assert received["run_early"] == []
        finally:
            await bus.stop()
            await other.stop()
