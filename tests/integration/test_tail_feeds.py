"""The feeds of a tail: which readers may join, what a slow reader costs, and that nothing is left behind."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import pytest

from runlane.api import tail as tail_module
from runlane.api.tail import Tail
from runlane.bus.memory import MemoryBus
from runlane.domain.events import Notice
from runlane.errors import InvalidRequest, RunNotFound
from runlane.store.queue.events import read_page
from tests.harness import Store, entry_of

_ID = re.compile(rb"^id: ([0-9]+)$", re.MULTILINE)


@pytest.fixture
async def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
async def tail(store: Store, bus: MemoryBus) -> AsyncGenerator[Tail]:
    tail = Tail(store.database, bus)
    await tail.start()
    try:
        yield tail
    finally:
        await tail.stop()


async def test_a_reader_begins_within_the_stream(store: Store, tail: Tail) -> None:
    run_id = await store.add()
    assert await (await tail.follow(run_id, 0)).next(10)
    (await tail.follow(run_id, 1)).close()
    for after in (-1, 2):
        with pytest.raises(InvalidRequest):
            await tail.follow(run_id, after)
    with pytest.raises(RunNotFound):
        await tail.follow("run_nothing", 0)


async def test_the_last_reader_ends_the_subscription(store: Store, tail: Tail, bus: MemoryBus) -> None:
    run_id = await store.add()
    one, two = await tail.follow(run_id, 0), await tail.follow(run_id, 0)
    for reader in (one, two):
        assert run_id in bus._followers
        reader.close()
    assert run_id not in bus._followers
    with pytest.raises(InvalidRequest):
        await tail.follow(run_id, 5)
    assert run_id not in bus._followers


async def test_a_slow_reader_is_bounded_and_misses_nothing(
    store: Store, tail: Tail, bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "MAX_BUFFER_BYTES", 2000)
    run_id = await store.add()
    claimed = await store.claim_one()
    reader = await tail.follow(run_id, 0)
    found = [int(number) for number in _ID.findall(await reader.next(10))]
    assert found == [1, 2]
    for number in range(40):
        await store.record(entry_of(claimed, events=[("log", f'{{"message":"{"x" * 100} {number}"}}')]))
    lines = await read_page(store.database, run_id, 2, 100)
    bus.publish([Notice(run_id, lines[-1].seq, tuple(lines))])
    piece = await reader.next(10)
    assert 0 < len(piece) <= 2000
    while found[-1] < lines[-1].seq:
        found += (int(number) for number in _ID.findall(piece))
        piece = await reader.next(10)
    assert found == list(range(1, lines[-1].seq + 1))


async def test_a_reader_that_is_ahead_of_its_feed_gets_nothing_twice(store: Store, bus: MemoryBus) -> None:
    # Without a loop that repairs feeds: only the notices of the test move the feed.
    tail = Tail(store.database, bus)
    run_id = await store.add()
    claimed = await store.claim_one()
    reader = await tail.follow(run_id, 0)
    await store.record(entry_of(claimed, events=[("log", "{}")]))
    found = [int(number) for number in _ID.findall(await reader.next(10))]
    assert found == [1, 2, 3], "the feed has reached 2"
    await store.record(entry_of(claimed, events=[("log", "{}")]))
    for line in await read_page(store.database, run_id, 2, 100):
        bus.publish([Notice(run_id, line.seq, (line,))])
    assert [int(number) for number in _ID.findall(await reader.next(10))] == [4]
    reader.close()
