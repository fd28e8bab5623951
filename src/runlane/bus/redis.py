"""The bus over Redis: bells as capped lists, everything else as pub/sub, on three connections per process.

Redis may vanish at any moment. What is said then is dropped, `reaches_others` turns false so that readers poll, and a
background task comes back by itself. When it does, every follower is told to look at the database once, since
nobody knows what was missed. No caller ever waits for Redis or sees its errors.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol, cast

import structlog
from redis.exceptions import RedisError

from runlane.bus import Heard
from runlane.bus.memory import MemoryBus, MemoryListener
from runlane.bus.redis_client import Clients, open_clients
from runlane.bus.wire import decode, encode_cancel, encode_delta, encode_notice
from runlane.model.event import Delta, Notice
from runlane.model.ids import new_id

log = structlog.get_logger(__name__)

# What may wait to be sent. Past it the oldest is dropped: readers find it in the database.
MAX_WAITING = 20_000
# Tokens that a bell may hold: enough to wake a cluster, too few to pile up behind a backlog.
BELL_CAP = 64
_BELL_SECONDS = 60
_SEND_AT_ONCE = 500
_BACK_OFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
_RING = (
    "if redis.call('llen', KEYS[1]) < tonumber(ARGV[1]) then "
    "redis.call('rpush', KEYS[1], '1') redis.call('expire', KEYS[1], ARGV[2]) end return 0"
)
_ERRORS = (RedisError, OSError, TimeoutError)


class _Send(Protocol):
    def __call__(self, pipe: Any) -> Any: ...


class RedisListener(MemoryListener):
    """An ear that also waits at the lanes' bells in Redis, but only while its worker has nothing to do."""

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
                    with contextlib.suppress(asyncio.CancelledError, *_ERRORS):
                        await task


class RedisBus(MemoryBus):
    """The process's own bus, and Redis for the way to the others."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__()
        self._url = url
        self._prefix = prefix
        self._origin = new_id("bus")
        self._clients: Clients | None = None
        self._waiting: deque[_Send] = deque(maxlen=MAX_WAITING)
        self._something = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._pubsub: Any = None
        self._changes: set[asyncio.Future[None]] = set()
        self.connected = False
        self.dropped = 0

    @property
    def reaches_others(self) -> bool:
        return self.connected

    async def start(self) -> None:
        self._clients = open_clients(self._url)
        self._tasks = [
            asyncio.create_task(self._send_loop(), name="runlane-bus-send"),
            asyncio.create_task(self._hear_loop(), name="runlane-bus-hear"),
        ]

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2)
        clients, self._clients = self._clients, None
        if clients is not None:
            await clients.close()

    def ring(self, lanes: Iterable[str]) -> None:
        for lane in lanes:
            if not self.ring_here(lane):
                key = self._bell(lane)
                self._send(lambda pipe, key=key: pipe.eval(_RING, 1, key, BELL_CAP, _BELL_SECONDS))

    def listen(self, lanes: frozenset[str] | None) -> MemoryListener:
        listener = RedisListener(self, lanes)
        self._listeners.append(listener)
        return listener

    def signal_cancel(self, run_id: str) -> None:
        super().signal_cancel(run_id)
        message = encode_cancel(self._origin, run_id)
        self._send(lambda pipe: pipe.publish(self._cancels(), message))

    def publish(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            self.tell_here(notice)
            if self.connected:
                channel, message = self._channel(notice.run_id), encode_notice(self._origin, notice)
                self._send(lambda pipe, channel=channel, message=message: pipe.publish(channel, message))

    def send_delta(self, delta: Delta) -> None:
        self.tell_here(delta)
        if self.connected:
            channel, message = self._channel(delta.run_id), encode_delta(self._origin, delta)
            self._send(lambda pipe: pipe.publish(channel, message))

    def follow(self, run_id: str, heard: Heard) -> Callable[[], None]:
        fresh = run_id not in self._followers
        end = super().follow(run_id, heard)
        if fresh:
            self._subscribe(run_id)

        def end_both() -> None:
            end()
            if run_id not in self._followers:
                self._unsubscribe(run_id)

        return end_both

    async def wait_at_bells(self, lanes: Collection[str], timeout_seconds: float) -> bool:
        """Take a token from one of the lanes' bells; False when none came in time."""
        clients = self._clients
        if clients is None or not self.connected or not lanes:
            await asyncio.sleep(timeout_seconds)
            return False
        try:
            taken = await clients.waiting.blpop([self._bell(lane) for lane in sorted(lanes)], timeout=timeout_seconds)
        except _ERRORS:
            await asyncio.sleep(timeout_seconds)
            return False
        return taken is not None

    # --- sending

    def _send(self, command: _Send) -> None:
        if len(self._waiting) == MAX_WAITING:
            self.dropped += 1
        self._waiting.append(command)
        self._something.set()

    async def _send_loop(self) -> None:
        """Send what waits. Policy for errors: drop it, come back later; nobody depends on it."""
        failures = 0
        while True:
            await self._something.wait()
            self._something.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(_SEND_AT_ONCE, len(self._waiting)))]
                try:
                    await self._send_batch(batch)
                    failures = 0
                except _ERRORS as error:
                    self.dropped += len(batch)
                    log.debug("redis_send_failed", error=str(error))
                    await asyncio.sleep(_BACK_OFF_SECONDS[min(failures, len(_BACK_OFF_SECONDS) - 1)])
                    failures += 1

    async def _send_batch(self, batch: list[_Send]) -> None:
        clients = self._clients
        if clients is None:
            return
        if clients.clustered:
            await asyncio.gather(*(command(clients.commands) for command in batch))
            return
        async with clients.commands.pipeline(transaction=False) as pipe:
            for command in batch:
                command(pipe)
            await pipe.execute(raise_on_error=False)

    # --- hearing

    async def _hear_loop(self) -> None:
        """Hear what others say. Policy for errors, whatever they are: readers poll meanwhile, and we come back."""
        failures = 0
        while True:
            error = "the connection ended"
            try:
                await self._hear()
            except Exception as raised:  # noqa: BLE001 - a loop that ended would leave this process deaf for ever
                error = str(raised) or type(raised).__name__
            if self.connected:
                failures = 0
            if failures == 0:
                log.warning("redis_away", error=error)
            self.connected = False
            self._pubsub = None
            await asyncio.sleep(_BACK_OFF_SECONDS[min(failures, len(_BACK_OFF_SECONDS) - 1)])
            failures += 1

    async def _hear(self) -> None:
        clients = self._clients
        if clients is None:
            return
        pubsub = clients.hearing.pubsub(ignore_subscribe_messages=True)
        try:
            await pubsub.subscribe(self._cancels(), *(self._channel(run_id) for run_id in self._followers))
            self._pubsub = pubsub
            if not self.connected:
                log.info("redis_connected")
            self.connected = True
            # Nobody knows what was said while we were away.
            for run_id in tuple(self._followers):
                self.tell_here(Notice(run_id, -1))
            for listener in self._listeners:
                listener.wake()
            while pubsub.connection.is_connected:
                message = await pubsub.get_message(timeout=None)
                if message is not None and message["type"] == "message":
                    self._heard(cast("bytes", message["data"]))
        finally:
            with contextlib.suppress(*_ERRORS):
                await pubsub.aclose()

    def _heard(self, message: bytes) -> None:
        heard = decode(message)
        if heard is None or heard.origin == self._origin:
            return
        if isinstance(heard.told, str):
            super().signal_cancel(heard.told)
        else:
            self.tell_here(heard.told)

    def _subscribe(self, run_id: str) -> None:
        self._change_subscription("subscribe", run_id)

    def _unsubscribe(self, run_id: str) -> None:
        self._change_subscription("unsubscribe", run_id)

    def _change_subscription(self, verb: str, run_id: str) -> None:
        pubsub = self._pubsub
        if pubsub is None:
            return  # the next connection subscribes to what is followed then

        async def change() -> None:
            # Written and not asked for by the library's own call, which would connect anew: that is the reader's part.
            connection = pubsub.connection
            if connection is None or not connection.is_connected:
                return
            with contextlib.suppress(*_ERRORS):
                await connection.send_command(verb, self._channel(run_id), check_health=False)
                if verb == "subscribe":
                    # What was said between the reader's look at the database and this moment.
                    self.tell_here(Notice(run_id, -1))

        task = asyncio.ensure_future(change())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    # --- names

    def _bell(self, lane: str) -> str:
        # One hash tag for all bells: a cluster waits only at lists that live in one place.
        return f"{{{self._prefix}:bell}}:{lane}"

    def _channel(self, run_id: str) -> str:
        return f"{self._prefix}:run:{run_id}"

    def _cancels(self) -> str:
        return f"{self._prefix}:cancel"
