"""The bus over Redis: bells as capped lists, everything else as pub/sub, on a few connections per process.

Redis may fail at any moment. Messages are dropped then, `reaches_others` becomes false so that readers poll, and a
background task reconnects. When a subscription begins, its followers are notified to read the database once, since
messages may have been missed. No caller ever waits for Redis or gets its errors.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

import structlog

from runlane.bus import Receive
from runlane.bus.memory import MemoryBus, MemoryListener
from runlane.bus.redis_client import REDIS_ERRORS, RedisClient, open_client
from runlane.bus.wire import CancelSignal, ReaderJoined, WorkReported, decode, encode
from runlane.bus.work_announcer import WorkAnnouncer
from runlane.domain.events import Delta, Notice
from runlane.domain.ids import new_id
from runlane.domain.maintenance import MAINTENANCE_SERVICES, MaintenanceService

log = structlog.get_logger(__name__)

# The maximum number of messages that wait to be sent. Beyond it the oldest is dropped: readers find its events in the
# database.
MAX_WAITING = 20_000
# The server is pinged after this time without a message. After the same time again, the connection is closed.
QUIET_SECONDS = 5.0
_SEND_AT_ONCE = 500
# How long a stopping process may take to send its last messages.
_FLUSH_SECONDS = 1.0
_BACK_OFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)


class RedisListener(MemoryListener):
    """A listener that also waits for bells in Redis, but only while its worker is idle."""

    def __init__(self, bus: RedisBus, lanes: frozenset[str] | None) -> None:
        super().__init__(bus, lanes)
        self._redis_bus = bus

    async def wait(self, lanes: Collection[str], timeout_seconds: float) -> bool:
        here = asyncio.ensure_future(super().wait(lanes, timeout_seconds))
        there = asyncio.ensure_future(self._redis_bus.wait_at_bells(lanes, timeout_seconds))
        try:
            await asyncio.wait([here, there], return_when=asyncio.FIRST_COMPLETED)
            if there.done() and not there.cancelled() and there.exception() is None and there.result():
                return True
            return await here
        finally:
            for task in (here, there):
                if not task.done():
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, *REDIS_ERRORS):
                        await task


class RedisBus(MemoryBus):
    """The bus of the process, extended to other processes by Redis."""

    kind = "redis"

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__()
        self._url = url
        self._prefix = prefix
        self._origin = new_id("bus")
        self._client: RedisClient | None = None
        # A channel and its message, or a bell and None.
        self._waiting: deque[tuple[str, bytes | None]] = deque(maxlen=MAX_WAITING)
        self._something = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._pubsub: Any = None
        # Changes of subscriptions that are not sent yet: the connection, the command and the channel.
        self._wanted: list[tuple[Any, str, str]] = []
        self._changing: asyncio.Task[None] | None = None
        self._announcer = WorkAnnouncer(self._announce_work)
        self.connected = False
        self.dropped = 0

    @property
    def reaches_others(self) -> bool:
        return self.connected

    @property
    def confirms_followers(self) -> bool:
        return self.connected

    async def start(self) -> None:
        self._client = open_client(self._url)
        self._tasks = [
            asyncio.create_task(self._send_loop(), name="runlane-bus-send"),
            asyncio.create_task(self._receive_loop(), name="runlane-bus-receive"),
        ]

    async def stop(self) -> None:
        """Send what waits, and stop. A process that accepts a run and ends must still wake a worker."""
        await super().stop()
        self._announcer.stop()
        tasks, self._tasks = self._tasks, []
        if tasks:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await self._idle.wait()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2)
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def ring(self, lanes: Iterable[str]) -> None:
        for lane in lanes:
            if not self.ring_here(lane):
                self._send(self._bell(lane), None)

    def listen(self, lanes: frozenset[str] | None) -> MemoryListener:
        listener = RedisListener(self, lanes)
        self._listeners.append(listener)
        return listener

    def signal_cancel(self, run_id: str) -> None:
        super().signal_cancel(run_id)
        self._send(self._cancels(), encode(CancelSignal(run_id), self._origin))

    def report_work(self, due: Collection[MaintenanceService]) -> None:
        super().report_work(due)
        self._announcer.announce(due)

    def _announce_work(self, service: MaintenanceService) -> None:
        if self.connected:
            self._send(self._cancels(), encode(WorkReported(service.value), self._origin))

    def announce_reader(self, run_id: str) -> None:
        super().announce_reader(run_id)
        if self.connected:
            # Every worker is already subscribed to this channel.
            self._send(self._cancels(), encode(ReaderJoined(run_id), self._origin))

    def publish(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            self.publish_here(notice)
            if self.connected:
                self._send(self._channel(notice.run_id), encode(notice, self._origin))

    def send_delta(self, delta: Delta) -> None:
        self.deliver(delta)
        if self.connected:
            self._send(self._channel(delta.run_id), encode(delta, self._origin))

    def follow(self, run_id: str, receive: Receive) -> Callable[[], None]:
        fresh = run_id not in self._followers
        end = super().follow(run_id, receive)
        if fresh:
            self._subscribe(run_id)
        return end

    def _unfollow(self, run_id: str, receive: Receive) -> None:
        super()._unfollow(run_id, receive)
        if run_id not in self._followers:
            self._unsubscribe(run_id)

    async def wait_at_bells(self, lanes: Collection[str], timeout_seconds: float) -> bool:
        """Take a token from one of the lanes' bells; return False on timeout."""
        bells = [self._bell(lane) for lane in sorted(lanes)]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        # Two tries: the server may have closed the first connection, and the second one is new.
        for _ in range(2):
            left = deadline - loop.time()
            if self._client is None or not self.connected or not bells or left <= 0:
                break
            try:
                return await self._client.take(bells, left)
            except REDIS_ERRORS as error:
                log.debug("redis_take_failed", error=_describe_error(error))
        await asyncio.sleep(max(0.0, deadline - loop.time()))
        return False

    # --- sending

    def _send(self, where: str, message: bytes | None) -> None:
        if len(self._waiting) == MAX_WAITING:
            self.dropped += 1
        self._waiting.append((where, message))
        self._idle.clear()
        self._something.set()

    async def _send_loop(self) -> None:
        """Send waiting messages. On any error: drop them and reconnect later; correctness does not depend on them."""
        failures = 0
        while True:
            await self._something.wait()
            self._something.clear()
            while self._waiting and self._client is not None:
                batch = [self._waiting.popleft() for _ in range(min(_SEND_AT_ONCE, len(self._waiting)))]
                bells = [where for where, message in batch if message is None]
                messages = [(where, message) for where, message in batch if message is not None]
                try:
                    await self._client.send(bells, messages)
                    failures = 0
                except Exception as error:  # noqa: BLE001 - the loop must survive every error of Redis
                    self.dropped += len(batch)
                    log.debug("redis_send_failed", error=_describe_error(error))
                    await asyncio.sleep(_BACK_OFF_SECONDS[min(failures, len(_BACK_OFF_SECONDS) - 1)])
                    failures += 1
            self._idle.set()

    # --- receiving

    async def _receive_loop(self) -> None:
        """Receive messages of other processes. On any error: reconnect; readers poll meanwhile."""
        failures = 0
        while self._client is not None:
            error = "the connection ended"
            try:
                await self._receive(self._client)
            except Exception as raised:  # noqa: BLE001 - if the loop ended, this process would never receive again
                error = _describe_error(raised)
            if self.connected:
                failures = 0
            if failures == 0:
                log.warning("redis_away", error=error)
            self.connected = False
            await asyncio.sleep(_BACK_OFF_SECONDS[min(failures, len(_BACK_OFF_SECONDS) - 1)])
            failures += 1

    async def _receive(self, client: RedisClient) -> None:
        followed = set(self._followers)
        pubsub = await client.subscribe([self._cancels(), *(self._channel(run_id) for run_id in followed)])
        try:
            await client.renew()
            self._pubsub = pubsub
            self.connected = True
            log.info("redis_connected")
            # Followers that came or left during the subscription.
            for run_id in followed ^ set(self._followers):
                self._change_subscription("subscribe" if run_id in self._followers else "unsubscribe", run_id)
            for listener in self._listeners:
                listener.wake()
            pinged = False
            while pubsub.connection.is_connected:
                message = await pubsub.get_message(timeout=QUIET_SECONDS)
                if message is not None:
                    pinged = False
                    match message["type"]:
                        case "message":
                            self._handle(cast("bytes", message["data"]))
                        case "subscribe":
                            self._subscribed(cast("bytes", message["channel"]).decode())
                        case _:
                            pass
                elif pinged:
                    # A host that lost power, or a cut network link, does not close the connection.
                    raise TimeoutError(f"no message for {2 * QUIET_SECONDS:g} s")
                else:
                    pinged = True
                    await pubsub.ping()
        finally:
            self._pubsub = None
            with contextlib.suppress(*REDIS_ERRORS):
                await pubsub.aclose()

    def _subscribed(self, channel: str) -> None:
        """Let the readers of a newly subscribed channel read the database once: earlier messages may be missed."""
        start = self._channel("")
        if channel.startswith(start):
            self.deliver(Notice(channel.removeprefix(start), -1))

    def _handle(self, message: bytes) -> None:
        decoded = decode(message)
        if decoded is None or decoded.origin == self._origin:
            return
        match decoded.content:
            case CancelSignal(run_id):
                super().signal_cancel(run_id)
            case ReaderJoined(run_id):
                super().announce_reader(run_id)
            case WorkReported(service) if service in MAINTENANCE_SERVICES:
                super().report_work({MaintenanceService(service)})
            case Notice() | Delta() as content:
                self.deliver(content)
            case _:
                pass

    def _subscribe(self, run_id: str) -> None:
        self._change_subscription("subscribe", run_id)

    def _unsubscribe(self, run_id: str) -> None:
        self._change_subscription("unsubscribe", run_id)

    def _change_subscription(self, verb: str, run_id: str) -> None:
        if self._pubsub is None:
            return  # the next connection subscribes to what is followed then
        self._wanted.append((self._pubsub, verb, self._channel(run_id)))
        if self._changing is None:
            self._changing = asyncio.create_task(self._change_subscriptions())

    async def _change_subscriptions(self) -> None:
        """Send the changes that were made meanwhile, in order, those of one kind together."""
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, []
                for (pubsub, verb), changes in groupby(wanted, key=itemgetter(0, 1)):
                    await _change(pubsub, verb, [channel for _, _, channel in changes])
        finally:
            self._changing = None

    # --- names

    def _bell(self, lane: str) -> str:
        # One hash tag for all bells: in a cluster, a command can wait only for lists of one slot.
        return f"{{{self._prefix}:bell}}:{lane}"

    def _channel(self, run_id: str) -> str:
        return f"{self._prefix}:run:{run_id}"

    def _cancels(self) -> str:
        return f"{self._prefix}:cancel"


async def _change(pubsub: Any, verb: str, channels: Sequence[str]) -> None:
    # The command is written directly: the library's call would reconnect, which only the receive loop does.
    connection = pubsub.connection
    if connection is None or not connection.is_connected:
        return
    with contextlib.suppress(*REDIS_ERRORS):
        await connection.send_command(verb, *channels, check_health=False)


def _describe_error(error: Exception) -> str:
    return str(error) or type(error).__name__
