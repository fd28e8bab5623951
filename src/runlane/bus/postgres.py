"""The bus over Postgres: LISTEN and NOTIFY on one connection per process, used when Redis is not configured.

A notifying transaction takes a lock of the whole server when it commits, and wakes every listening connection. So
notifications are never part of the transaction that they report: they are sent after it, all that wait in one
statement, at most every few milliseconds. Events and live text are sent only for runs that have readers in another
process; processes announce which runs they follow. Bells are not sent while no other process listens.

The connection may break at any moment. Messages are dropped then, `reaches_others` becomes false so that readers and
workers poll, and a background task reconnects. After that the readers of this process read the database once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import asyncpg
import structlog

from runlane.bus import Receive
from runlane.bus.memory import MemoryBus, MemoryListener
from runlane.bus.notification import Unpacker, pack
from runlane.bus.wire import (
    Bell,
    BellServed,
    BusContent,
    CancelSignal,
    Followed,
    ProcessJoined,
    ReaderJoined,
    WorkReported,
    decode_parts,
    encode,
)
from runlane.bus.work_announcer import WorkAnnouncer
from runlane.domain.events import Delta, Notice
from runlane.domain.ids import new_id
from runlane.domain.maintenance import MAINTENANCE_SERVICES, MaintenanceService
from runlane.settings import Settings
from runlane.store.sql.postgres import CONNECTION_ERRORS, connect

log = structlog.get_logger(__name__)

CHANNEL = "runlane"
APPLICATION = "runlane-wakeups"
# The maximum number of messages that wait to be sent. Beyond it the oldest is dropped: readers and workers poll.
MAX_WAITING = 20_000
# The least time between two notifying transactions of a process.
SEND_EVERY_SECONDS = 0.005
# How often the connection is checked, and the other listening processes are counted.
CHECK_SECONDS = 10.0
# How long an announcement that a run is followed counts, and how often it is repeated.
FOLLOWED_SECONDS = 60.0
ANNOUNCE_SECONDS = 20.0
# The workers that a bell reaches claim one after another, at this average interval.
STAGGER_SECONDS = 0.002
MAX_STAGGER_SECONDS = 0.1
# How long a stopping process may take to send its last messages.
_FLUSH_SECONDS = 1.0
# The maximum delay between this process and any other in receiving the same notification.
_ECHO_SECONDS = 0.02
_RUN_IDS_PER_MESSAGE = 100
_BACK_OFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
_NOTIFY = "select pg_notify($1, payload) from unnest($2::text[]) as payload"
_COUNT = """
select count(*) from pg_stat_activity where datname = current_database() and application_name = $1
"""


class PostgresListener(MemoryListener):
    """A listener that wakes a random moment after a bell of another process, unless another worker served the bell.

    Every process receives every bell. Without this, each run would make all idle workers claim at once.
    """

    def __init__(self, bus: PostgresBus, lanes: frozenset[str] | None) -> None:
        super().__init__(bus, lanes)
        self._postgres_bus = bus
        self._armed: dict[str, asyncio.TimerHandle] = {}
        self._serving: set[str] = set()

    async def wait(self, lanes: Collection[str], timeout_seconds: float) -> bool:
        if not self.rang:
            self._postgres_bus.served(self._serving)
        self._serving.clear()
        return await super().wait(lanes, timeout_seconds)

    def arm(self, lane: str, delay_seconds: float) -> None:
        """Wake after this time, or at once if the worker already claims."""
        if not self.waiting:
            self.wake()
        elif lane not in self._armed:
            self._armed[lane] = asyncio.get_running_loop().call_later(delay_seconds, self._wake_for, lane)

    def disarm(self, lane: str) -> None:
        """Do not wake for this lane: another worker found nothing more to claim."""
        timer = self._armed.pop(lane, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        for lane in tuple(self._armed):
            self.disarm(lane)
        super().close()

    def _wake_for(self, lane: str) -> None:
        del self._armed[lane]
        self._serving.add(lane)
        self.wake()


class PostgresBus(MemoryBus):
    """The bus of the process, extended to other processes by notifications."""

    kind = "postgres"

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        self._origin = new_id("bus")
        self._announcer = WorkAnnouncer(lambda service: self._send(WorkReported(service.value)))
        self._waiting: deque[BusContent] = deque(maxlen=MAX_WAITING)
        self._bells: dict[str, None] = {}
        # Lanes whose bell rang while no other process listened. A process that joins at that moment gets the bell late.
        self._rung_alone: dict[str, None] = {}
        self._something = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._followed_elsewhere: dict[str, float] = {}
        self._unpacker = Unpacker()
        self._sent = 0
        self._processes = 1
        self._connection: Any = None
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._away = False
        self.connected = False

    @property
    def reaches_others(self) -> bool:
        return self.connected

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._listen_loop(), name="runlane-bus-listen"),
            asyncio.create_task(self._send_loop(), name="runlane-bus-send"),
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

    # --- messages of this process

    def ring(self, lanes: Iterable[str]) -> None:
        for lane in lanes:
            if self.ring_here(lane):
                continue
            if self.connected and self._processes <= 1:
                self._rung_alone[lane] = None
            else:
                self._bells[lane] = None
                self._wake_sender()

    def served(self, lanes: Iterable[str]) -> None:
        """Cancel the wake-up of other workers for these lanes."""
        for lane in lanes:
            self._send(BellServed(lane))

    def listen(self, lanes: frozenset[str] | None) -> PostgresListener:
        listener = PostgresListener(self, lanes)
        self._listeners.append(listener)
        return listener

    def signal_cancel(self, run_id: str) -> None:
        super().signal_cancel(run_id)
        self._send(CancelSignal(run_id))

    def report_work(self, due: Collection[MaintenanceService]) -> None:
        super().report_work(due)
        self._announcer.announce(due)

    def announce_reader(self, run_id: str) -> None:
        super().announce_reader(run_id)
        if self.connected:
            self._send(ReaderJoined(run_id))

    def publish(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            self.publish_here(notice)
            if notice.run_id in self._followed_elsewhere:
                self._send(notice)

    def send_delta(self, delta: Delta) -> None:
        self.deliver(delta)
        if delta.run_id in self._followed_elsewhere:
            self._send(delta)

    def follow(self, run_id: str, receive: Receive) -> Callable[[], None]:
        fresh = run_id not in self._followers
        end = super().follow(run_id, receive)
        if fresh and self.connected:
            self._send(Followed((run_id,)))
        return end

    # --- sending

    def _send(self, content: BusContent) -> None:
        self._waiting.append(content)
        self._wake_sender()

    def _wake_sender(self) -> None:
        self._idle.clear()
        self._something.set()

    async def _send_loop(self) -> None:
        """Send what waits. On any error, drop it: correctness does not depend on it."""
        while True:
            await self._something.wait()
            await self._ready.wait()
            self._something.clear()
            try:
                messages = [encode(content) for content in self._taken()]
                payloads = pack(self._origin, messages, self._sent)
                self._sent += len(messages)
                await self._connection.execute(_NOTIFY, CHANNEL, payloads)
            except Exception as error:  # noqa: BLE001 - if the loop ended, this process would never send again
                log.debug("notify_failed", error=_describe_error(error))
                self._lost.set()
            if not self._something.is_set():
                self._idle.set()
            await asyncio.sleep(SEND_EVERY_SECONDS)

    def _taken(self) -> Iterator[BusContent]:
        """Take everything that waits. Bells come last, so that a worker which they wake finds what was sent before."""
        while self._waiting:
            yield self._waiting.popleft()
        bells, self._bells = self._bells, {}
        for lane in bells:
            yield Bell(lane)

    # --- receiving

    async def _listen_loop(self) -> None:
        """Listen to other processes. On any error: reconnect; readers and workers poll meanwhile."""
        failures = 0
        while True:
            error = "the connection ended"
            try:
                await self._listen()
            except (asyncpg.PostgresError, *CONNECTION_ERRORS) as raised:
                error = _describe_error(raised)
            except Exception:
                # If the loop ended, this process would never receive again.
                log.exception("listen_failed")
            if self.connected:
                failures = 0
            if failures == 0:
                log.warning("wakeups_away", error=error)
            self._away = True
            self.connected = False
            self._ready.clear()
            self._connection = None
            await asyncio.sleep(_BACK_OFF_SECONDS[min(failures, len(_BACK_OFF_SECONDS) - 1)])
            failures += 1

    async def _listen(self) -> None:
        connection = await connect(self._settings, APPLICATION)
        try:
            self._lost.clear()
            connection.add_termination_listener(self._on_terminated)
            await connection.add_listener(CHANNEL, self._receive)
            self._processes = await connection.fetchval(_COUNT, APPLICATION)
            self._connection = connection
            self._ready.set()
            self.connected = True
            # A program that starts a run has nothing to report about the first connection.
            if self._away:
                self._away = False
                log.info("wakeups_back")
            self._joined()
            announce_at = time.monotonic() + ANNOUNCE_SECONDS
            while not await self._lost_within(CHECK_SECONDS):
                # A host that lost power, or a cut network link, does not close the connection.
                self._count_processes(await connection.fetchval(_COUNT, APPLICATION))
                self._forget_unfollowed()
                if time.monotonic() >= announce_at:
                    self._announce_followed()
                    announce_at = time.monotonic() + ANNOUNCE_SECONDS
        finally:
            connection.terminate()

    def _count_processes(self, count: int) -> None:
        self._processes = count
        rung, self._rung_alone = self._rung_alone, {}
        # A process that joins later claims once on its own, so it needs no earlier bell.
        if count > 1:
            self.ring(rung)

    def _on_terminated(self, connection: Any) -> None:
        self._lost.set()

    async def _lost_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._lost.wait()
        return self._lost.is_set()

    def _joined(self) -> None:
        """Messages may have been missed until now: let readers read the database once and workers claim once."""
        self._send(ProcessJoined())
        self._announce_followed()
        for run_id in tuple(self._followers):
            self.deliver(Notice(run_id, -1))
        for listener in self._listeners:
            listener.wake()

    def _announce_followed(self) -> None:
        run_ids = tuple(self._followers)
        for start in range(0, len(run_ids), _RUN_IDS_PER_MESSAGE):
            self._send(Followed(run_ids[start : start + _RUN_IDS_PER_MESSAGE]))

    def _forget_unfollowed(self) -> None:
        now = time.monotonic()
        for run_id in [run_id for run_id, until in self._followed_elsewhere.items() if until < now]:
            del self._followed_elsewhere[run_id]

    def _receive(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        received = self._unpacker.unpack(payload)
        if received is None:
            return
        for parts in received.messages:
            content = decode_parts(parts)
            if received.origin == self._origin:
                self._echo(content)
            else:
                self._handle(content)

    def _echo(self, content: BusContent | None) -> None:
        """Let new readers read the database once more when every process has received that their runs are followed."""
        if isinstance(content, Followed):
            for run_id in content.run_ids:
                asyncio.get_running_loop().call_later(_ECHO_SECONDS, self.deliver, Notice(run_id, -1))

    def _handle(self, content: BusContent | None) -> None:
        match content:
            case Bell(lane):
                self._ring_listeners(lane)
            case BellServed(lane):
                for listener in self._postgres_listeners(lane):
                    listener.disarm(lane)
            case CancelSignal(run_id):
                super().signal_cancel(run_id)
            case ReaderJoined(run_id):
                super().announce_reader(run_id)
            case WorkReported(service):
                if service in MAINTENANCE_SERVICES:
                    super().report_work({MaintenanceService(service)})
            case Followed(run_ids):
                until = time.monotonic() + FOLLOWED_SECONDS
                self._followed_elsewhere.update(dict.fromkeys(run_ids, until))
            case ProcessJoined():
                self._count_processes(self._processes + 1)
                self._announce_followed()
            case Notice() | Delta():
                self.deliver(content)
            case None:
                pass

    def _ring_listeners(self, lane: str) -> None:
        longest = min(MAX_STAGGER_SECONDS, STAGGER_SECONDS * (self._processes - 1))
        for listener in self._postgres_listeners(lane):
            listener.arm(lane, longest * random.random())  # noqa: S311 - spreads load, not for security

    def _postgres_listeners(self, lane: str) -> Iterator[PostgresListener]:
        for listener in self._listeners:
            if isinstance(listener, PostgresListener) and listener.listens_to(lane):
                yield listener


def _describe_error(error: Exception) -> str:
    return str(error) or type(error).__name__
