"""The feeds of a tail: which readers may join, what a slow reader costs, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence

import pytest

from runlane.api import tail as tail_module
from runlane.api.tail import Tail
from runlane.bus.memory import MemoryBus
from runlane.domain.events import Notice
from runlane.errors import InvalidRequest, RunNotFound
from runlane.store.queue.events import INLINE_BYTES, PART_BYTES, RunPosition, read_page, read_positions
from runlane.store.sql.database import Database
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


class PositionReads:
    """Records the runs of each read of positions. With `held`, a read returns what it has read after it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: list[list[str]] = []
        self.began = asyncio.Event()
        self.held: asyncio.Event | None = None
        monkeypatch.setattr(tail_module, "read_positions", self._read)
        # No poll, so that only notices cause reads.
        monkeypatch.setattr(tail_module, "POLL_SECONDS", 3600)

    async def _read(self, database: Database, run_ids: Sequence[str]) -> list[RunPosition]:
        self.reads.append(sorted(run_ids))
        found = await read_positions(database, run_ids)
        self.began.set()
        if self.held is not None:
            await self.held.wait()
        return found


async def test_a_gap_makes_only_its_own_feed_read_the_database(
    store: Store, bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = PositionReads(monkeypatch)
    tail = Tail(store.database, bus)
    await tail.start()
    one, two = await store.add(), await store.add()
    readers = {run_id: await tail.follow(run_id, 0) for run_id in (one, two)}
    for reader in readers.values():
        await reader.next(10)
    claimed = await store.claim_one()
    positions.reads.clear()

    bus.publish([Notice(claimed.run_id, 2)])

    assert b'"type":"worker_picked_up"' in await readers[claimed.run_id].next(10)
    assert positions.reads == [[claimed.run_id]]
    await tail.stop()


async def test_notices_of_one_run_do_not_keep_the_others_from_being_read(store: Store, tail: Tail) -> None:
    quiet, busy = await store.add(), await store.add()
    reader = await tail.follow(quiet, 0)
    await reader.next(10)
    (await tail.follow(busy, 0)).expect_repeats()
    claimed = [await store.claim_one(), await store.claim_one()]
    assert quiet in {one.run_id for one in claimed}

    async def publish() -> None:
        while True:
            tail._bus.publish([Notice(busy, 1_000)])
            await asyncio.sleep(0)

    # The process that claimed the run died before it published the claim.
    publishing = asyncio.create_task(publish())
    assert b'"type":"worker_picked_up"' in await reader.next(60)
    publishing.cancel()


async def test_a_notice_during_the_first_read_of_a_feed_makes_it_read_again(
    store: Store, bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = PositionReads(monkeypatch)
    positions.held = asyncio.Event()
    # The test does what the loop would do.
    tail = Tail(store.database, bus)
    run_id = await store.add()
    following = asyncio.create_task(tail.follow(run_id, 1))
    await positions.began.wait()
    await store.claim_one()
    bus.publish([Notice(run_id, 2)])
    tail._changed.clear()
    tail._stale.clear()
    await tail._repair([run_id])
    assert positions.reads == [[run_id]], "the feed waits for the first read of its reader"

    positions.held.set()
    reader = await following

    assert tail._changed.is_set()
    await tail._repair(tail._stale)
    assert tail._feeds[run_id].seq == 2
    reader.close()


class ConfirmingBus(MemoryBus):
    """Confirms followers, when the test does it."""

    confirms_followers = True


async def test_a_reader_of_a_new_run_reads_once_its_subscription_has_begun(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = PositionReads(monkeypatch)
    bus = ConfirmingBus()
    tail = Tail(store.database, bus)
    await tail.start()
    run_id = await store.add()
    # Its notice is sent before the subscription begins.
    await store.claim_one()
    reader = tail.follow_new(run_id)
    assert await reader.next(0) == b""
    assert positions.reads == []

    bus.deliver(Notice(run_id, -1))

    assert b'"type":"worker_picked_up"' in await reader.next(10)
    assert positions.reads == [[run_id]]
    await tail.stop()


async def test_large_events_reach_live_readers_in_order(store: Store, tail: Tail, bus: MemoryBus) -> None:
    run_id = await store.add()
    claimed = await store.claim_one()
    reader = await tail.follow(run_id, 0)
    found = [int(number) for number in _ID.findall(await reader.next(10))]
    sizes = [1, INLINE_BYTES, 10, PART_BYTES, PART_BYTES // 2, 1]
    for size in sizes:
        await store.record(entry_of(claimed, events=[("log", f'{{"message":"{"x" * size}"}}')]))
    bus.publish([Notice(run_id, 2 + len(sizes))])
    while found[-1] < 2 + len(sizes):
        piece = await reader.next(10)
        assert len(piece) <= PART_BYTES + 1000
        found += (int(number) for number in _ID.findall(piece))
    assert found == list(range(1, 3 + len(sizes)))
    # It is live again.
    await store.record(entry_of(claimed, events=[("log", "{}")]))
    bus.publish([Notice(run_id, found[-1] + 1)])
    assert [int(number) for number in _ID.findall(await reader.next(10))] == [found[-1] + 1]
