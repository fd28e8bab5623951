"""Every event reaches a reader once and in order over one connection, whatever happens between its reads."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from runlane.api.tail import Follower, Page, Tail
from runlane.bus.memory import MemoryBus
from runlane.domain.events import Notice
from runlane.store.queue.claim import Claimed
from runlane.store.queue.events import read_page
from tests.harness import Store, entry_of

_ID = re.compile(rb"^id: ([0-9]+)$", re.MULTILINE)
# A reader that misses an event waits for it in vain; the loop that repairs feeds looks several times within this.
_READS = 20
_WAIT_SECONDS = 0.5


class Scene:
    """A run that is being executed, a tail over its database, and a bus on which a test publishes."""

    def __init__(self, store: Store, tail: Tail, bus: MemoryBus, claimed: Claimed) -> None:
        self.store = store
        self.tail = tail
        self.bus = bus
        self.claimed = claimed
        self.run_id = claimed.run_id

    async def log(self) -> None:
        """Store an event without a notice."""
        await self.store.record(entry_of(self.claimed, events=[("log", "{}")]))

    async def end(self) -> None:
        """Store the end of the run without a notice."""
        await self.store.finish(self.claimed)

    async def publish(self, after: int) -> None:
        """Pass on what is stored after a number, as a worker does after its commit."""
        lines = await read_page(self.store.database, self.run_id, after, 100)
        self.bus.publish([Notice(self.run_id, lines[-1].seq, tuple(lines))])

    def between_page_and_join(self, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[None]]) -> None:
        """Let something happen once, when a reader has read a page and not yet looked whether it may join."""
        page, waiting = self.tail.page, [happens]

        async def read(run_id: str, after: int) -> Page:
            found = await page(run_id, after)
            if waiting:
                await waiting.pop()()
            return found

        monkeypatch.setattr(self.tail, "page", read)


@pytest.fixture
async def scene(store: Store) -> AsyncGenerator[Scene]:
    await store.add()
    bus = MemoryBus()
    tail = Tail(store.database, bus)
    await tail.start()
    try:
        yield Scene(store, tail, bus, await store.claim_one())
    finally:
        await tail.stop()


async def numbers(follower: Follower, until: int) -> list[int]:
    """Return the numbers of the events that the reader gets, up to one of them or the end of the stream."""
    found: list[int] = []
    for _ in range(_READS):
        found += (int(number) for number in _ID.findall(await follower.next(_WAIT_SECONDS)))
        if follower.ended or (found and found[-1] >= until):
            break
    return found


async def test_a_feed_that_advances_before_a_reader_joins_it_leaves_no_gap(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = await scene.tail.follow(scene.run_id, 0)

    async def advance() -> None:
        await scene.log()
        await scene.publish(2)

    scene.between_page_and_join(monkeypatch, advance)
    assert await numbers(follower, 2) == [1, 2]
    await scene.log()
    await scene.publish(3)
    assert await numbers(follower, 4) == [3, 4]


async def test_a_lost_notice_leaves_no_gap(scene: Scene) -> None:
    follower = await scene.tail.follow(scene.run_id, 0)
    assert await numbers(follower, 2) == [1, 2]
    await scene.log()
    await scene.log()
    # Event 3 was not published.
    await scene.publish(3)
    assert await numbers(follower, 4) == [3, 4]


async def test_a_run_that_ends_between_a_page_and_its_position_is_read_to_the_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = await scene.tail.follow(scene.run_id, 0)
    scene.between_page_and_join(monkeypatch, scene.end)
    last = 3
    assert await numbers(follower, last + 1) == [1, 2, last]
    assert follower.complete
    assert (await scene.store.event_types(scene.run_id))[-1] == "done"


async def test_a_run_that_ends_after_an_empty_page_is_read_to_the_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = await scene.tail.follow(scene.run_id, 2)
    scene.between_page_and_join(monkeypatch, scene.end)
    assert await numbers(follower, 4) == [3]
    assert follower.complete
