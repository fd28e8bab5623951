"""The bus of one process: bells ring in the event loop, within microseconds, and reach no other process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable


class MemoryListener:
    """An ear that remembers one bell, however often it rang."""

    def __init__(self, bus: MemoryBus, lanes: frozenset[str] | None) -> None:
        self.lanes = lanes
        self._bus = bus
        self._rang = asyncio.Event()

    async def wait(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._rang.wait()
        except TimeoutError:
            return False
        self._rang.clear()
        return True

    def wake(self) -> None:
        self._rang.set()

    def close(self) -> None:
        self._bus.forget(self)


class MemoryBus:
    """Used from one event loop."""

    def __init__(self) -> None:
        self._listeners: list[MemoryListener] = []
        self._cancel_hearers: list[Callable[[str], None]] = []

    def ring(self, lanes: Iterable[str]) -> None:
        rung = set(lanes)
        for listener in self._listeners:
            if listener.lanes is None or not listener.lanes.isdisjoint(rung):
                listener.wake()

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
        self._cancel_hearers.append(heard)

        def end() -> None:
            if heard in self._cancel_hearers:
                self._cancel_hearers.remove(heard)

        return end
