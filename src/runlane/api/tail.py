"""The tail: one for all readers of a process.

Each followed run has a feed, which knows the number it has reached. What the bus brings is passed on if it continues
there; anything else, a gap, a hint without events, an outage, a process that died between commit and publish, makes
the feed read the database, many feeds in one query. A reader that is behind (it just came, or is slow) reads the
database at its own pace and joins its feed when it has caught up. So replay, live and repair are one path, and no
reader is buffered without end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import structlog

from runlane.api.sse_encoding import cut_frame, delta_frame, line_frame
from runlane.bus import Bus
from runlane.domain.events import Delta, EventType, Notice, StoredEvent
from runlane.errors import InvalidRequest, RunlaneError, RunNotFound, Unavailable
from runlane.observability.outage import outage
from runlane.store.queue.events import read_lines, read_page, read_positions
from runlane.store.sql.database import Database

log = structlog.get_logger(__name__)

# A reader with more waiting than this goes back to reading the database at its own pace.
MAX_BUFFER_BYTES = 512 * 1024
PAGE = 500
# Without a bus that reaches others this is how news arrive; with one it only finds what was never published.
POLL_SECONDS = 0.25
SAFETY_POLL_SECONDS = 1.0
# How long a reader that has joined takes the text so far of open answers, which their worker repeats for it.
REPEATS_SECONDS = 5.0


@dataclass(slots=True)
class Feed:
    """A followed run: the number that was passed on last, and who reads it. Below zero the number is not known yet."""

    run_id: str
    seq: int = -1
    followers: set[Follower] = field(default_factory=set["Follower"])
    unfollow: Callable[[], None] = lambda: None


class Page(NamedTuple):
    """A piece of a run's stream, encoded: its last number, and whether it is as long as pages get."""

    content: bytes
    last: int
    full: bool


class Follower:
    """One reader of one run: it reads the database until it has caught up with its feed, then it hears the feed.

    `complete` says that the stream ended because its run did, not because this process stops. `refusal` is why the
    reader may not read on.
    """

    def __init__(self, tail: Tail, feed: Feed, after: int) -> None:
        self._tail = tail
        self._feed = feed
        self._seq: int = after
        self._frames: list[bytes] = []
        self._bytes = 0
        self._live = False
        self._repeats_until = 0.0
        self._over = False
        self.complete = False
        self.refusal: RunlaneError | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._when_closed: Callable[[], None] = lambda: None

    @property
    def ended(self) -> bool:
        """True when nothing more will come and everything was handed out."""
        return self._over and not self._frames

    async def next(self, timeout_seconds: float) -> bytes:
        """Everything that waits, as one piece of bytes; empty when the time is up or the stream has ended."""
        if not self._frames and not self._over and not self._live:
            await self._catch_up()
        if not self._frames and not self._over and self._live:
            await self._wait(timeout_seconds)
        waiting = b"".join(self._frames)
        self._frames.clear()
        self._bytes = 0
        return waiting

    def when_closed(self, call: Callable[[], None]) -> None:
        """Call this when the reader is gone."""
        self._when_closed = call

    def close(self) -> None:
        """Read no more. Safe to call twice."""
        self._tail.leave(self._feed, self)
        self._when_closed()

    def shut(self) -> None:
        """End the stream from our side; what waits is still handed out."""
        self._over = True
        self._wake()

    def expel(self, why: RunlaneError) -> None:
        """End the stream because its reader may no longer read; what waits is not handed out."""
        self.refusal = why
        self._frames.clear()
        self.shut()

    def on_event(self, line: StoredEvent, frame: bytes) -> None:
        """Take an event from the feed, if it is the next one for this reader."""
        if self._over or not self._live or line.seq != self._seq + 1:
            return
        if self._bytes + len(frame) > MAX_BUFFER_BYTES:
            # Too slow for live: the database keeps the rest for it.
            self.fall_back()
            return
        self._seq = line.seq
        self._push(frame)
        if line.type == EventType.DONE:
            self._over = self.complete = True

    def fall_back(self) -> None:
        """Read the database again: what comes next is not there for the feed to pass on."""
        self._live = False
        self._wake()

    def on_delta(self, frame: bytes, *, repeat: bool) -> None:
        """Take something live; a reader that is behind misses it, which is its nature."""
        if repeat and asyncio.get_running_loop().time() > self._repeats_until:
            return  # it has heard this before
        if self._live and not self._over and self._bytes + len(frame) <= MAX_BUFFER_BYTES:
            self._push(frame)

    def expect_repeats(self) -> bool:
        """Take, for a moment, what is repeated for readers that have missed it; whether this reader is live."""
        if self._live and not self._over:
            self._repeats_until = asyncio.get_running_loop().time() + REPEATS_SECONDS
            return True
        return False

    def _push(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._bytes += len(frame)
        self._wake()

    async def _wait(self, seconds: float) -> None:
        # An event and a timeout would do the same, but need more memory, and most readers wait most of the time.
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _catch_up(self) -> None:
        """Read a page; at the end of what is stored, join the feed."""
        page = await self._tail.page(self._feed.run_id, self._seq)
        if self._over:
            return
        if page.content:
            self._push(page.content)
            self._seq = page.last
        if page.full:
            return
        if await self._tail.is_over(self._feed.run_id, self._seq):
            self.complete = True
            self.shut()
        elif self._seq >= self._feed.seq:
            # Perhaps further than the feed: then it hears nothing new until the feed has come here too.
            self._live = True
            self.expect_repeats()
            self._tail.announce(self._feed)


class Tail:
    """start() and stop(); follow() for each reader."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus
        self._feeds: dict[str, Feed] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._reading: dict[tuple[str, int], asyncio.Task[Page]] = {}
        self._when_shut: set[Callable[[], None]] = set()

    @property
    def followers(self) -> int:
        """Readers in this process."""
        return sum(len(feed.followers) for feed in self._feeds.values())

    @property
    def stopping(self) -> bool:
        """Whether streams end now."""
        return self._stopping

    async def start(self) -> None:
        """Begin to follow the database for all readers."""
        self._stopping = False
        self._task = asyncio.create_task(self._loop(), name="runlane-tail")

    async def stop(self) -> None:
        """End every stream, so that readers come back elsewhere. Safe to call twice."""
        self.shut_all()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._reading:
            # Whoever waits for one still gets it, and nothing reads from a database that is closed next.
            await asyncio.wait(self._reading.values(), timeout=SAFETY_POLL_SECONDS)

    def shut_all(self) -> None:
        """End every stream and let new ones end at once. The loop goes on, for whoever still reads what waits."""
        self._stopping = True
        for feed in list(self._feeds.values()):
            self._shut(feed)
        for heard in tuple(self._when_shut):
            heard()

    def when_shut(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Call this when streams end; the answer ends that. For readers that wait for something else than a run."""
        self._when_shut.add(heard)
        return lambda: self._when_shut.discard(heard)

    async def follow(self, run_id: str, after: int) -> Follower:
        """A reader of the run's events after a number. RunNotFound, or InvalidRequest for a number that cannot be."""
        feed = self._feeds.get(run_id)
        if feed is None:
            feed = self._feeds[run_id] = Feed(run_id)
            # Subscribe first, read afterwards: what is committed in between is heard, or seen, or both.
            feed.unfollow = self._bus.follow(run_id, partial(self._hear, feed))
        follower = Follower(self, feed, after)
        feed.followers.add(follower)
        try:
            positions = await read_positions(self._database, [run_id])
            if not positions:
                raise RunNotFound(run_id)
            if not 0 <= after <= positions[0].last_seq:
                raise InvalidRequest(f"Run {run_id} has {positions[0].last_seq} events; {after} is none of them.")
        except BaseException:
            follower.close()
            raise
        if feed.seq < 0:
            feed.seq = positions[0].last_seq
        if self._stopping:
            follower.shut()
        return follower

    def leave(self, feed: Feed, follower: Follower) -> None:
        """A reader went away; the last one ends the feed."""
        feed.followers.discard(follower)
        if not feed.followers and self._feeds.get(feed.run_id) is feed:
            del self._feeds[feed.run_id]
            feed.unfollow()

    def announce(self, feed: Feed) -> None:
        """Ask the run's worker to repeat the live text of open answers, which a reader here has missed."""
        self._bus.announce_reader(feed.run_id)

    async def page(self, run_id: str, after: int) -> Page:
        """Stored events of one run. Readers that want the same at the same time share one read and its encoding."""
        key = (run_id, after)
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(self._read(run_id, after))
            reading.add_done_callback(lambda task: self._have_read(key, task))
        # A reader that goes away must not take the page from the others.
        return await asyncio.shield(reading)

    async def _read(self, run_id: str, after: int) -> Page:
        lines = await read_page(self._database, run_id, after, PAGE)
        frames: list[bytes] = []
        last = after
        for line in lines:
            if line.seq != last + 1:
                frames.append(cut_frame(run_id, line.seq))
            frames.append(line_frame(run_id, line))
            last = line.seq
        return Page(b"".join(frames), last, len(lines) == PAGE)

    def _have_read(self, key: tuple[str, int], reading: asyncio.Task[Page]) -> None:
        del self._reading[key]
        if not reading.cancelled():
            reading.exception()  # perhaps nobody waits for it any more

    async def is_over(self, run_id: str, seq: int) -> bool:
        """Whether nothing comes after this number: a retried run goes on after its `done`, a deleted one does not."""
        positions = await read_positions(self._database, [run_id])
        return not positions or (positions[0].ended and positions[0].last_seq <= seq)

    def _hear(self, feed: Feed, told: Notice | Delta) -> None:
        if isinstance(told, Delta):
            frame = delta_frame(told)
            for follower in feed.followers:
                follower.on_delta(frame, repeat=told.repeat)
            return
        for line in told.lines:
            if feed.seq >= 0 and line.seq == feed.seq + 1:
                self._pass_on(feed, line)
        if told.last_seq < 0:
            # The subscription has just begun, so live text until now was not heard here.
            live = [follower for follower in feed.followers if follower.expect_repeats()]
            if live:
                self.announce(feed)
        if told.last_seq < 0 or told.last_seq > feed.seq:
            self._news.set()

    def _pass_on(self, feed: Feed, line: StoredEvent) -> None:
        feed.seq = line.seq
        frame = line_frame(feed.run_id, line)
        for follower in tuple(feed.followers):
            follower.on_event(line, frame)

    def _shut(self, feed: Feed) -> None:
        for follower in tuple(feed.followers):
            follower.shut()

    async def _loop(self) -> None:
        """Bring feeds up to the database. While it is away readers keep their streams, and we try again."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAFETY_POLL_SECONDS if self._bus.reaches_others else POLL_SECONDS):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._repair()
            except Unavailable as error:
                outage.failed("a read of events", str(error))
                await asyncio.sleep(SAFETY_POLL_SECONDS)
            except Exception:
                log.exception("tail_failed")
                await asyncio.sleep(SAFETY_POLL_SECONDS)

    async def _repair(self) -> None:
        feeds = {run_id: feed for run_id, feed in self._feeds.items() if feed.seq >= 0}
        if not feeds:
            return
        positions = {position.run_id: position for position in await read_positions(self._database, list(feeds))}
        for run_id, feed in feeds.items():
            position = positions.get(run_id)
            if position is None:
                self._shut(feed)  # retention took it
            elif position.first_seq > feed.seq + 1:
                # Retention took what this feed has not passed on yet; each reader is told by the page it reads.
                feed.seq = position.last_seq
                for follower in tuple(feed.followers):
                    follower.fall_back()
        behind = [
            (run_id, feeds[run_id].seq)
            for run_id, position in positions.items()
            if position.last_seq > feeds[run_id].seq
        ]
        while behind:
            found = await read_lines(self._database, behind, PAGE)
            more: list[tuple[str, int]] = []
            for run_id, _ in behind:
                feed, lines = feeds[run_id], found.get(run_id, [])
                for line in lines:
                    if line.seq == feed.seq + 1:
                        self._pass_on(feed, line)
                if len(lines) == PAGE:
                    more.append((run_id, feed.seq))
            behind = more
