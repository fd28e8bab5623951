"""The end of a stream: with a final event when the run has ended, without one when only this process stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from runlane.api.sse import EventStream
from runlane.api.tail import Tail
from runlane.bus.memory import MemoryBus
from runlane.domain.events import Notice, StoredEvent
from runlane.maintenance.retention import Retention
from runlane.settings import Settings
from tests.harness import Store, completed, entry_of, settings_for


@pytest.fixture
def settings(sqlite_url: str) -> Settings:
    return settings_for(sqlite_url)


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
async def tail(store: Store, bus: MemoryBus) -> AsyncGenerator[Tail]:
    tail = Tail(store.database, bus)
    await tail.start()
    yield tail
    await tail.stop()


class Reader:
    """The other side of an ASGI answer: it takes everything and stays."""

    def __init__(self) -> None:
        self.body = b""
        self.began = asyncio.Event()

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: Message) -> None:
        self.body += message.get("body", b"")
        self.began.set()


async def test_a_reader_that_has_the_last_event_gets_an_end_without_events(store: Store, tail: Tail) -> None:
    run_id = await store.add()
    await store.finish(await store.claim_one(), completed())
    reader = Reader()
    await EventStream(await tail.follow(run_id, 3)).run(reader.receive, reader.send)
    assert reader.body == b'data: {"type":"stream_complete"}\n\n'


@pytest.mark.parametrize("stopped_before", [False, True])
async def test_a_stopping_process_does_not_call_an_unfinished_run_complete(
    store: Store, tail: Tail, stopped_before: bool
) -> None:
    run_id = await store.add()
    if stopped_before:
        await tail.stop()
    reader = Reader()
    answer = EventStream(await tail.follow(run_id, 1))
    streaming = asyncio.create_task(answer.run(reader.receive, reader.send))
    await reader.began.wait()
    await tail.stop()
    await asyncio.wait_for(streaming, 30)
    assert b"stream_complete" not in reader.body


async def test_events_after_the_stop_do_not_keep_a_stream_open(store: Store, tail: Tail, bus: MemoryBus) -> None:
    """A busy run keeps emitting; its readers must still reconnect elsewhere."""
    run_id = await store.add()
    follower = await tail.follow(run_id, 0)
    while b"queued" not in await follower.next(30):
        pass
    assert await follower.next(0.01) == b"", "it is live"
    follower.shut()
    bus.publish([Notice(run_id, 2, (StoredEvent(2, "log", 1, 0, "{}"),))])
    assert follower.ended
    assert not follower.complete
    follower.close()


async def cut(store: Store, run_id: str) -> int:
    """Cut the events of an ended run; the number that is left."""
    await store.sql("update runs set ended_at = ended_at - 60000000 where id = :id", id=run_id)
    url = store.settings.database_url
    assert url is not None
    retention = Retention(settings_for(url.get_secret_value(), events_retention_days=1e-5), store.database)
    while await retention.run_once():
        pass
    run = await store.get(run_id)
    assert run.first_seq == run.last_seq
    return run.last_seq


async def test_a_reader_of_cut_events_is_notified_and_reaches_the_end(store: Store, tail: Tail) -> None:
    run_id = await store.add()
    await store.finish(await store.claim_one(), completed())
    assert await cut(store, run_id) == 3
    frame = f'data: {{"type":"truncated","run_id":"{run_id}","first_seq":3}}\n\n'.encode()
    # Who has number 2 misses nothing.
    for after, first in ((0, frame), (1, frame), (2, b"")):
        reader = Reader()
        await EventStream(await tail.follow(run_id, after)).run(reader.receive, reader.send)
        assert reader.body.startswith(first + b'id: 3\ndata: {"type":"done"')
        assert reader.body.count(b"\n\n") == (2 if first else 1)


async def test_a_reader_that_the_cut_overtook_is_notified_and_reaches_the_end(store: Store, bus: MemoryBus) -> None:
    """Nothing was published, and when the tail reads for the first time the events are gone."""
    run_id = await store.add()
    tail = Tail(store.database, bus)
    follower = await tail.follow(run_id, 0)
    assert b"queued" in await follower.next(30)
    assert await follower.next(0.01) == b"", "it is live"
    claimed = await store.claim_one()
    await store.record(entry_of(claimed, events=[("log", "{}")] * 5))
    await store.finish(claimed, completed())
    last = await cut(store, run_id)
    await tail.start()
    seen = b""
    async with asyncio.timeout(30):
        while not follower.ended:
            seen += await follower.next(30)
    assert f'"type":"truncated","run_id":"{run_id}","first_seq":{last}'.encode() in seen
    assert b'"type":"done"' in seen
    assert follower.complete
    await tail.stop()
