"""The bus of one process: messages are delivered in the event loop at once, and reach no other process."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TypeVar

from runlane.bus import Receive, ReceiveDue
from runlane.domain.events import Delta, Notice
from runlane.domain.hints import Hint, Topic
from runlane.domain.maintenance import MaintenanceService

T = TypeVar("T")


class MemoryListener:
    """A listener that keeps at most one bell until a wait takes it."""

    def __init__(self, bus: MemoryBus, lanes: frozenset[str] | None) -> None:
        self.lanes = lanes
        self.waiting = False
        self._bus = bus
        self._rang = asyncio.Event()

    @property
    def rang(self) -> bool:
        """Whether a bell has rung since the last wait."""
        return self._rang.is_set()

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
        """Return whether bells of this lane are for this listener."""
        return self.lanes is None or lane in self.lanes


class MemoryBus:
    """Used from one event loop."""

    kind = "none"
    reaches_others = False
    confirms_followers = False

    def __init__(self) -> None:
        self._listeners: list[MemoryListener] = []
        self._cancel_receivers: list[Callable[[str], None]] = []
        self._reader_receivers: list[Callable[[str], None]] = []
        self._maintenance_receivers: list[ReceiveDue] = []
        self._timers: dict[MaintenanceService, asyncio.TimerHandle] = {}
        self._followers: defaultdict[str, list[Receive]] = defaultdict(list)
        self.live_processes = 1
        self.on_publish: Callable[[Notice], None] | None = None
        self.on_hint: Callable[[Hint], None] | None = None

    async def start(self) -> None:
        return None

    async def stop(self) -> None:
        while self._timers:
            self._timers.popitem()[1].cancel()

    def ring(self, lanes: Iterable[str]) -> None:
        for lane in lanes:
            self.ring_here(lane)

    def ring_here(self, lane: str) -> bool:
        """Wake a waiting listener of this process. Return False if all are busy: a busy worker claims again soon."""
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
        """Remove a listener. Safe to call twice."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def signal_cancel(self, run_id: str) -> None:
        for receive in tuple(self._cancel_receivers):
            receive(run_id)

    def on_cancel(self, receive: Callable[[str], None]) -> Callable[[], None]:
        return _subscribe(self._cancel_receivers, receive)

    def announce_reader(self, run_id: str) -> None:
        for receive in tuple(self._reader_receivers):
            receive(run_id)

    def on_reader(self, receive: Callable[[str], None]) -> Callable[[], None]:
        return _subscribe(self._reader_receivers, receive)

    def report_survey(self, due: Collection[MaintenanceService], processes: int | None = None) -> None:
        if processes is not None:
            self.live_processes = processes
        for receive in tuple(self._maintenance_receivers):
            receive(due, surveyed=True)

    def report_work(self, due: Collection[MaintenanceService]) -> None:
        for receive in tuple(self._maintenance_receivers):
            receive(due, surveyed=False)

    def report_timer(self, after_seconds: float, service: MaintenanceService = MaintenanceService.TIMERS) -> None:
        """Keep the earliest timer of each service: after each pass a service reports the next one."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(service)
        if timer is not None and not timer.cancelled():
            if timer.when() <= loop.time() + after_seconds:
                return
            timer.cancel()
        self._timers[service] = loop.call_later(after_seconds, self._timer_is_due, service)

    def on_maintenance(self, receive: ReceiveDue) -> Callable[[], None]:
        return _subscribe(self._maintenance_receivers, receive)

    def _timer_is_due(self, service: MaintenanceService) -> None:
        self._timers.pop(service, None)
        for receive in tuple(self._maintenance_receivers):
            receive((service,), surveyed=False)

    def publish(self, notices: Iterable[Notice]) -> None:
        if self._followers or self.on_publish is not None:
            for notice in notices:
                self.publish_here(notice)

    def publish_here(self, notice: Notice) -> None:
        """Pass a notice of this process to its followers here, and to open pages as a hint."""
        self.deliver(notice)
        if self.on_publish is not None:
            self.on_publish(notice)

    def hint(self, topic: Topic, tenant: str | None = None, *ids: str) -> None:
        if self.on_hint is not None:
            self.on_hint(Hint(topic, tenant, ids))

    def send_delta(self, delta: Delta) -> None:
        self.deliver(delta)

    def deliver(self, message: Notice | Delta) -> None:
        """Pass a message to the followers in this process."""
        for receive in tuple(self._followers.get(message.run_id, ())):
            receive(message)

    def follow(self, run_id: str, receive: Receive) -> Callable[[], None]:
        self._followers[run_id].append(receive)
        # Not a closure, which needs more memory: there is one object for each followed run.
        return partial(self._unfollow, run_id, receive)

    def _unfollow(self, run_id: str, receive: Receive) -> None:
        receivers = self._followers.get(run_id)
        if receivers is not None and receive in receivers:
            receivers.remove(receive)
            if not receivers:
                del self._followers[run_id]


def _subscribe(receivers: list[T], receive: T) -> Callable[[], None]:
    """Add a receiver; return a function that removes it."""
    receivers.append(receive)

    def end() -> None:
        if receive in receivers:
            receivers.remove(receive)

    return end
