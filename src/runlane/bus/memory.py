"""The bus of one process: what is said is heard in the event loop at once, and reaches no other process."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from runlane.bus import Heard
from runlane.domain.events import Delta, Notice


class MemoryListener:
    """An ear that remembers one bell, however often it rang."""

    def __init__(self, bus: MemoryBus, lanes: frozenset[str] | None) -> None:
        self.lanes = lanes
        self.waiting = False
        self._bus = bus
        self._rang = asyncio.Event()

    async def wait(self, lanes: Collection[str], timeout_seconds: float) -> bool:
        self.waiting = True
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._rang.wait()
        except TimeoutError:
            return False
        finally:
            self.waiting = False
            self._rang.clear()
        return True

    def wake(self) -> None:
        self._rang.set()

    def close(self) -> None:
        self._bus.forget(self)

    def listens_to(self, lane: str) -> bool:
        """Whether a bell of this lane is for this ear."""
        return self.lanes is None or lane in self.lanes


class MemoryBus:
    """Used from one event loop."""

    reaches_others = False

    def __init__(self) -> None:
        self._listeners: list[MemoryListener] = []
        self._cancel_hearers: list[Callable[[str], None]] = []
        self._reader_hearers: list[Callable[[str], None]] = []
        self._followers: defaultdict[str, list[Heard]] = defaultdict(list)

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        return None

    def ring(self, lanes: Iterable[str]) -> None:
        for lane in lanes:
            self.ring_here(lane)

    def ring_here(self, lane: str) -> bool:
        """Call a waiting listener of this process; False when all of them are busy. Those look by themselves soon."""
        called = False
        for listener in self._listeners:
            if listener.listens_to(lane) and not (called and listener.waiting):
                called = called or listener.waiting
                listener.wake()
        return called

    def listen(self, lanes: frozenset[str] | None) -> MemoryListener:
        listener = MemoryListener(self, lanes)
        self._listeners.append(listener)
        return listener

    def forget(self, listener: MemoryListener) -> None:
        """End a listener; harmless when it ended before."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def signal_cancel(self, run_id: str) -> None:
        for heard in tuple(self._cancel_hearers):
            heard(run_id)

    def on_cancel(self, heard: Callable[[str], None]) -> Callable[[], None]:
        return _added(self._cancel_hearers, heard)

    def announce_reader(self, run_id: str) -> None:
        for heard in tuple(self._reader_hearers):
            heard(run_id)

    def on_reader(self, heard: Callable[[str], None]) -> Callable[[], None]:
        return _added(self._reader_hearers, heard)

    def publish(self, notices: Iterable[Notice]) -> None:
        if self._followers:
            for notice in notices:
                self.deliver(notice)

    def send_delta(self, delta: Delta) -> None:
        self.deliver(delta)

    def deliver(self, told: Notice | Delta) -> None:
        """Tell the followers in this process."""
        for heard in tuple(self._followers.get(told.run_id, ())):
            heard(told)

    def follow(self, run_id: str, heard: Heard) -> Callable[[], None]:
        self._followers[run_id].append(heard)

        def end() -> None:
            hearers = self._followers.get(run_id)
            if hearers is not None and heard in hearers:
                hearers.remove(heard)
                if not hearers:
                    del self._followers[run_id]

        return end


def _added(hearers: list[Callable[[str], None]], heard: Callable[[str], None]) -> Callable[[], None]:
    """Add a hearer; the returned function removes it."""
    hearers.append(heard)

    def end() -> None:
        if heard in hearers:
            hearers.remove(heard)

    return end
