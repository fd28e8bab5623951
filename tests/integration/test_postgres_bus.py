"""The bus over Postgres: messages reach other processes without Redis, and a broken connection is made again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from typing import cast

import asyncpg
import pytest

from runlane.bus import ReceiveDue
from runlane.bus import postgres as postgres_bus
from runlane.bus.choice import make_bus
from runlane.bus.memory import MemoryBus
from runlane.bus.notification import MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES, Unpacker, pack
from runlane.bus.postgres import APPLICATION, CHANNEL, PostgresBus
from runlane.bus.wire import Bell, encode
from runlane.domain.events import Delta, Notice, StoredEvent
from runlane.domain.maintenance import MaintenanceService
from runlane.settings import Settings
from tests.harness import eventually, settings_for

# Longer than any test: what arrives in time was sent, not polled.
POLL_SECONDS = 600.0
LANES = frozenset({"default"})
MakeBus = Callable[[], Awaitable[PostgresBus]]


@pytest.fixture
def settings(postgres_url: str) -> Settings:
    return settings_for(postgres_url)


@pytest.fixture
async def make(settings: Settings) -> AsyncGenerator[MakeBus]:
    made: list[PostgresBus] = []

    async def connected() -> PostgresBus:
        bus = PostgresBus(settings)
        made.append(bus)
        await bus.start()
        await eventually(lambda: bus.connected, "a connection")
        return bus

    yield connected
    for bus in made:
        await bus.stop()


def event(seq: int, data: str = "{}") -> StoredEvent:
    return StoredEvent(seq, "log", 1, 0, data)


async def operate(settings: Settings, statement: str, *arguments: object) -> None:
    assert settings.database_url is not None
    connection = cast("asyncpg.Connection", await asyncpg.connect(settings.database_url.get_secret_value()))
    try:
        await connection.execute(statement, *arguments)
    finally:
        await connection.close()


def test_the_bus_is_chosen_by_what_is_configured(postgres_url: str, sqlite_url: str) -> None:
    assert isinstance(make_bus(settings_for(postgres_url)), PostgresBus)
    for settings in (
        settings_for(sqlite_url),
        settings_for(postgres_url, pgbouncer=True),
        settings_for(postgres_url, postgres_wakeups=False),
    ):
        assert type(make_bus(settings)) is MemoryBus


async def test_a_bell_wakes_a_worker_of_another_process(make: MakeBus) -> None:
    sender, receiver = await make(), await make()
    listener = receiver.listen(LANES)
    waiting = asyncio.create_task(listener.wait(LANES, POLL_SECONDS))
    await eventually(lambda: listener.waiting)
    sender.ring(["other"])
    sender.ring(["default"])
    assert await waiting is True


async def test_a_process_sends_no_bells_while_it_is_alone(settings: Settings, make: MakeBus) -> None:
    assert settings.database_url is not None
    sent: list[str] = []

    def receive(connection: object, pid: int, channel: str, payload: object) -> None:
        sent.append(str(payload))

    observer = cast("asyncpg.Connection", await asyncpg.connect(settings.database_url.get_secret_value()))
    try:
        await observer.add_listener(CHANNEL, receive)
        alone = await make()
        alone.ring(["default"])
        alone.signal_cancel("run_1")
        await eventually(lambda: any("run_1" in payload for payload in sent), "what is not a bell")
        bell = encode(Bell("default")).decode()
        assert not any(bell in payload for payload in sent)
        await make()
        await eventually(lambda: any(bell in payload for payload in sent), "the bell, for the process that joined")
    finally:
        await observer.close()


async def test_a_served_bell_wakes_no_further_worker(make: MakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_bus, "STAGGER_SECONDS", POLL_SECONDS)
    monkeypatch.setattr(postgres_bus, "MAX_STAGGER_SECONDS", POLL_SECONDS)
    sender, first, second = await make(), await make(), await make()
    for bus in (first, second):
        bus._processes = 3
    listeners = [bus.listen(LANES) for bus in (first, second)]
    waiting = [asyncio.create_task(listener.wait(LANES, POLL_SECONDS)) for listener in listeners]
    await eventually(lambda: all(listener.waiting for listener in listeners))
    sender.ring(["default"])
    await eventually(lambda: all(listener._armed for listener in listeners), "both are to wake later")
    listeners[0]._wake_for("default")
    assert await waiting[0] is True
    # The first worker has claimed what there was, and waits again.
    again = asyncio.create_task(listeners[0].wait(LANES, POLL_SECONDS))
    await eventually(lambda: not listeners[1]._armed, "the second sleeps on")
    assert not waiting[1].done()
    # A bell that rings after that is a new one.
    sender.ring(["default"])
    await eventually(lambda: listeners[1]._armed)
    for task in (again, waiting[1]):
        task.cancel()
    for listener in listeners:
        listener.close()


async def test_a_worker_that_is_claiming_does_not_miss_a_bell(make: MakeBus) -> None:
    sender, receiver = await make(), await make()
    listener = receiver.listen(None)
    sender.ring(["default"])
    await eventually(lambda: listener.rang)
    assert await listener.wait(LANES, POLL_SECONDS) is True


async def test_cancels_and_readers_reach_the_worker(make: MakeBus) -> None:
    sender, receiver = await make(), await make()
    cancelled: list[str] = []
    joined: list[str] = []
    receiver.on_cancel(cancelled.append)
    receiver.on_reader(joined.append)
    sender.signal_cancel("run_1")
    sender.announce_reader("run_2")
    await eventually(lambda: (cancelled, joined) == (["run_1"], ["run_2"]))


async def test_events_and_live_text_reach_the_readers_of_other_processes(make: MakeBus) -> None:
    worker, server = await make(), await make()
    received: list[Notice | Delta] = []
    server.follow("run_1", received.append)
    await eventually(lambda: "run_1" in worker._followed_elsewhere)
    notice = Notice("run_1", 1, (event(1),))
    # Larger than one notification may be.
    large = Delta("run_1", 1, "content", '"' + "ä" * 30_000 + '"')
    worker.publish([notice, Notice("run_2", 1, (event(1),))])
    worker.send_delta(large)
    await eventually(lambda: large in received)
    assert notice in received
    assert {message.run_id for message in received} == {"run_1"}


async def test_runs_without_readers_cost_no_notification(make: MakeBus) -> None:
    worker, server = await make(), await make()
    worker.publish([Notice("run_1", 1, (event(1),))])
    worker.send_delta(Delta("run_1", 1, "content", '"x"'))
    assert not worker._waiting
    stop = server.follow("run_1", lambda message: None)
    await eventually(lambda: "run_1" in worker._followed_elsewhere)
    stop()
    worker._followed_elsewhere["run_1"] = 0.0
    worker._forget_unfollowed()
    worker.publish([Notice("run_1", 2, (event(2),))])
    assert not worker._waiting


async def test_a_process_that_starts_later_learns_which_runs_are_followed(make: MakeBus) -> None:
    server = await make()
    received: list[Notice | Delta] = []
    server.follow("run_1", received.append)
    worker = await make()
    await eventually(lambda: "run_1" in worker._followed_elsewhere)


async def test_a_new_reader_reads_the_database_once_more(make: MakeBus) -> None:
    """What another process committed before it learned of the reader was not sent."""
    server = await make()
    received: list[Notice | Delta] = []
    server.follow("run_1", received.append)
    await eventually(lambda: received == [Notice("run_1", -1)])


async def test_a_broken_connection_is_made_again(make: MakeBus, settings: Settings) -> None:
    sender, receiver = await make(), await make()
    received: list[Notice | Delta] = []
    receiver.follow("run_1", received.append)
    listener = receiver.listen(LANES)
    for _ in range(3):
        waiting = asyncio.create_task(listener.wait(LANES, POLL_SECONDS))
        await eventually(lambda: listener.waiting)
        received.clear()
        broken = {bus: bus._connection for bus in (sender, receiver)}
        await operate(
            settings, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1", APPLICATION
        )
        await eventually(lambda: all(bus._connection not in (None, old) for bus, old in broken.items()))  # noqa: B023
        # Bells and events may have been missed meanwhile: the worker claims, the reader reads the database.
        assert await waiting is True
        await eventually(lambda: Notice("run_1", -1) in received)
    waiting = asyncio.create_task(listener.wait(LANES, POLL_SECONDS))
    await eventually(lambda: listener.waiting)
    sender.ring(["default"])
    assert await waiting is True


async def test_a_bus_that_stops_sends_what_waits(make: MakeBus, settings: Settings) -> None:
    receiver = await make()
    listener = receiver.listen(LANES)
    waiting = asyncio.create_task(listener.wait(LANES, POLL_SECONDS))
    await eventually(lambda: listener.waiting)
    short_lived = PostgresBus(settings)
    await short_lived.start()
    short_lived.ring(["default"])
    await short_lived.stop()
    assert await waiting is True


def test_messages_are_packed_into_payloads() -> None:
    small = [encode(Notice(f"run_{number}", number)) for number in range(500)]
    large = encode(Delta("run_1", 1, "content", "x" * 100_000))
    too_large = encode(Delta("run_1", 1, "content", "x" * MAX_MESSAGE_BYTES))
    payloads = pack("bus_1", [*small, large, too_large])
    assert all(len(payload.encode()) <= MAX_PAYLOAD_BYTES for payload in payloads)
    assert len(payloads) < 25
    unpacker = Unpacker()
    messages = [message for payload in payloads for message in unpacker.unpack(payload).messages]  # pyright: ignore[reportOptionalMemberAccess]
    assert len(messages) == 501
    assert unpacker._incomplete == {}


@pytest.mark.parametrize("payload", ["", "x", "{}", "[]", '["bus_1"]', '["bus_1",1,5,9,"x"]', '["bus_1",1,0,1,"%"]'])
def test_payloads_of_another_format_are_ignored(payload: str) -> None:
    unpacked = Unpacker().unpack(payload)
    assert unpacked is None or not unpacked.messages


async def test_work_that_one_process_reports_wakes_the_services_of_others(make: MakeBus) -> None:
    sender, other = await make(), await make()
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
