"""The bus over a real Redis: it reconnects by itself, as fast the tenth time as the first."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Collection, Generator
from typing import Any, cast

import pytest
import redis as blocking_redis
import redis.asyncio as redis

from runlane.bus import ReceiveDue
from runlane.bus import redis as redis_bus
from runlane.bus.redis import RedisBus
from runlane.bus.redis_client import OneServer
from runlane.domain.events import Delta, Notice, StoredEvent
from runlane.domain.maintenance import MaintenanceService
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


async def test_a_bell_after_a_restart_wakes_a_worker_whose_connection_was_idle(server: RedisServer) -> None:
    """The first wait after a restart must not use a connection that the old server had accepted."""
    bus, other = RedisBus(server.url, "test"), RedisBus(server.url, "test")
    await bus.start()
    await other.start()
    listener = bus.listen(None)
    try:
        for _ in range(2):
            await eventually(lambda: bus.connected and other.connected, "the connections")
            # The wake-up of the reconnection is used up, and the connection for bells is idle afterwards.
            other.ring(["default"])
            await eventually(lambda: listener.wait(["default"], 0.2), "a bell")
            while await listener.wait(["default"], 0.2):
                pass
            lost = bus._pubsub
            server.restart()
            await eventually(lambda lost=lost: bus._pubsub not in (None, lost), "another connection")
            await eventually(lambda: listener.wait(["default"], 0.2), "the wake-up of the reconnection")
            await eventually(lambda: other.connected, "the other connection")
            waiting = asyncio.create_task(listener.wait(["default"], 600.0))
            other.ring(["default"])
            assert await asyncio.wait_for(waiting, 60.0)
    finally:
        await bus.stop()
        await other.stop()


async def test_a_bell_reaches_a_worker_whose_waiting_connection_was_closed(server: RedisServer) -> None:
    """A server closes connections for many reasons; the subscription, which would report it, may stay."""
    bus, other = RedisBus(server.url, "test"), RedisBus(server.url, "test")
    await bus.start()
    await other.start()
    operator = redis.Redis.from_url(server.url)
    listener = bus.listen(None)

    async def is_blocked() -> bool:
        return (await operator.info("clients"))["blocked_clients"] == 1

    try:
        await eventually(lambda: bus.connected and other.connected, "the connections")
        while await listener.wait(["default"], 0.2):
            pass
        waiting = asyncio.create_task(listener.wait(["default"], 600.0))
        await eventually(is_blocked, "the wait in Redis")
        await operator.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await eventually(is_blocked, "another wait in Redis")
        other.ring(["default"])
        assert await asyncio.wait_for(waiting, 60.0)
    finally:
        await bus.stop()
        await other.stop()
        await operator.aclose()


async def test_work_that_one_process_reports_wakes_the_services_of_others(server: RedisServer) -> None:
    sender, other = RedisBus(server.url, "test"), RedisBus(server.url, "test")
    await sender.start()
    await other.start()
    await eventually(lambda: sender.connected and other.connected, "the connections")
    here: list[MaintenanceService] = []
    there: list[MaintenanceService] = []

    def receiver(services: list[MaintenanceService]) -> ReceiveDue:
        def receive(due: Collection[MaintenanceService], *, surveyed: bool) -> None:
            services.extend(due)

        return receive

    sender.on_maintenance(receiver(here))
    other.on_maintenance(receiver(there))
    for _ in range(50):
        sender.report_work({MaintenanceService.TRIGGERS})
    assert here == [MaintenanceService.TRIGGERS] * 50
    # The first at once, and one more for all that followed.
    await eventually(lambda: len(there) == 2, "two wake-ups")
    other.report_work({MaintenanceService.TRIGGERS})
    await eventually(lambda: len(here) == 51, "a wake-up of the sender")
    # What one process finds in the database is not for the others.
    sender.report_survey({MaintenanceService.WEBHOOKS})
    sender.report_work({MaintenanceService.BULK})
    await eventually(lambda: len(there) == 4, "the wake-up after it")
    assert there[2:] == [MaintenanceService.TRIGGERS, MaintenanceService.BULK]
    await sender.stop()
    await other.stop()


async def test_a_bus_that_stops_sends_what_waits(server: RedisServer) -> None:
    """A program that starts a run and ends wakes a worker of another process."""
    receiver = RedisBus(server.url, "test")
    await receiver.start()
    try:
        await eventually(lambda: receiver.connected, "the connection")
        # It is made after the connection, which wakes the listeners that exist.
        listener = receiver.listen(frozenset({"default"}))
        waiting = asyncio.create_task(listener.wait({"default"}, 600))
        await eventually(lambda: listener.waiting, "the worker to wait")
        short_lived = RedisBus(server.url, "test")
        await short_lived.start()
        short_lived.ring(["default"])
        await short_lived.stop()
        await eventually(waiting.done, "the bell")
        assert await waiting is True
    finally:
        await receiver.stop()


async def test_a_message_is_sent_before_a_later_task_takes_its_first_step(server: RedisServer) -> None:
    """A worker publishes a claim and starts the run, whose first step may take long."""
    bus = RedisBus(server.url, "test")
    await bus.start()
    other: Any = cast("Any", blocking_redis.Redis).from_url(server.url).pubsub(ignore_subscribe_messages=True)
    other.subscribe("test:run:run_one")
    try:
        await eventually(lambda: bus.connected, "the connection")
        bus.publish([Notice("run_one", 1)])
        await eventually(lambda: isinstance(bus._client, OneServer) and bus._client._sender is not None, "a message")
        messages = (other.get_message(timeout=5) for _ in range(10))
        assert next(message for message in messages if message is not None)

        async def step() -> object:
            # It blocks the event loop, so nothing is written meanwhile.
            return other.get_message(timeout=5)

        bus.publish([Notice("run_one", 2)])
        assert await asyncio.create_task(step()) is not None
    finally:
        other.close()
        await bus.stop()


async def test_a_message_is_sent_although_the_server_has_closed_the_connection(server: RedisServer) -> None:
    bus, other = RedisBus(server.url, "test"), RedisBus(server.url, "test")
    operator = redis.Redis.from_url(server.url)
    received: list[Notice | Delta] = []
    await bus.start()
    await other.start()
    try:
        await eventually(lambda: bus.connected and other.connected, "the connections")
        other.follow("run_one", received.append)
        await eventually(lambda: Notice("run_one", -1) in received, "the subscription")
        bus.publish([Notice("run_one", 1)])
        await eventually(lambda: Notice("run_one", 1) in received, "the first message")
        client = bus._client
        assert isinstance(client, OneServer)
        await eventually(lambda: client._sender is not None, "the connection is kept")
        kept = client._sender

        await operator.execute_command("CLIENT", "KILL", "TYPE", "normal")
        await eventually(kept._reader.at_eof, "the end of the connection")
        bus.publish([Notice("run_one", 2)])

        await eventually(lambda: Notice("run_one", 2) in received, "the second message")
        assert bus.dropped == 0
    finally:
        await bus.stop()
        await other.stop()
        await operator.aclose()
