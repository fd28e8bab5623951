"""The tail: serve all readers of streams in a process.

Each followed run has a feed with the number of the last event that the feed has forwarded. The feed forwards events
from the bus that continue this number. After a gap or a notice without events, the feed reads the database, with many
feeds in one query. At intervals all feeds read it, because a bus may fail and a process may die between commit and
publish. A reader that is new or slow reads the database at its own pace and joins its feed when it has caught up. So
replay, live events and repair share one path, and the buffer of a reader is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

import structlog

from runlane.api.sse_encoding import delta_frame, line_frame
from runlane.api.tail_page import PAGE, Encoding, Page, PageReads
from runlane.bus import Bus
from runlane.domain.events import Delta, EventType, Notice, StoredEvent
from runlane.errors import InvalidRequest, RunlaneError, RunNotFound, Unavailable
from runlane.observability.outage import outage
from runlane.store.queue.events import read_lines, read_positions
from runlane.store.sql.database import Database

log = structlog.get_logger(__name__)

# A reader with more pending bytes than this returns to reading the database at its own pace.
MAX_BUFFER_BYTES = 512 * 1024
# Without a bus between processes, polling finds the events. With a bus, polling only finds unpublished events.
POLL_SECONDS = 0.25
SAFETY_POLL_SECONDS = 1.0
# How long a new reader accepts the repeated text of open answers, which the worker publishes again for it.
REPEATS_SECONDS = 5.0
# The number of the event that records the acceptance of a run.
ACCEPTED_SEQ = 1


@dataclass(slots=True)
class Feed:
    """A followed run: the number of the last forwarded event (negative until it is read), and its readers."""

    run_id: str
    seq: int = -1
    followers: set[Follower] = field(default_factory=set["Follower"])
    unfollow: Callable[[], None] = lambda: None

    def leave_to_pages(self, last_seq: int) -> None:
        """Let each reader read up to a number by itself: pages report gaps, and are bounded in bytes."""
        self.seq = last_seq
        for follower in tuple(self.followers):
            follower.fall_back()


class Follower:
    """One reader of one run. It reads the database until it has caught up, then it receives events from its feed.

    `complete` is true if the stream ended because its run ended, not because this process stops. `refusal` is the
    reason why the reader's access was revoked.
    """

    def __init__(self, tail: Tail, feed: Feed, after: int, encoding: Encoding | None = None) -> None:
        self._encoding = encoding
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
        """True when the stream has ended and all events were returned."""
        return self._over and not self._frames

    @property
    def shares_frames(self) -> bool:
        """Whether the reader receives the same frames as other readers."""
        return self._encoding is None

    async def next(self, timeout_seconds: float) -> bytes:
        """Return everything that is pending; empty after the timeout or when the stream has ended."""
        if not self._frames and not self._over and not self._live:
            await self._catch_up()
        if not self._frames and not self._over and self._live:
            await self._wait(timeout_seconds)
        waiting = b"".join(self._frames)
        self._frames.clear()
        self._bytes = 0
        return waiting

    def when_closed(self, call: Callable[[], None]) -> None:
        """Call this when the follower is closed."""
        self._when_closed = call

    def close(self) -> None:
        """Stop reading. Safe to call twice."""
        self._tail.leave(self._feed, self)
        self._when_closed()

    def shut(self) -> None:
        """End the stream from the server's side. Pending frames are still returned."""
        self._over = True
        self._wake()

    def revoke(self, why: RunlaneError) -> None:
        """End the stream because the reader's access was revoked. Pending frames are dropped."""
        self.refusal = why
        self._frames.clear()
        self.shut()

    def on_event(self, line: StoredEvent, frame: bytes) -> None:
        """Accept an event from the feed, if it is the reader's next event. `frame` is the frame that readers share."""
        if self._over or not self._live or line.seq != self._seq + 1:
            return
        if self._bytes + (len(frame) or len(line.data)) > MAX_BUFFER_BYTES:
            self.fall_back()
            return
        self._seq = line.seq
        self._push(frame if self._encoding is None else self._encoding.event(self._feed.run_id, line))
        if line.type == EventType.DONE:
            self._over = self.complete = True
            self._wake()

    def fall_back(self) -> None:
        """Read the database again, because the feed lacks the next event, or the reader is too slow for it."""
        self._live = False
        self._wake()

    def on_delta(self, frame: bytes, *, repeat: bool) -> None:
        """Accept a delta. A reader that is behind skips it, because deltas are not stored."""
        if self._encoding is not None:
            return
        if repeat and asyncio.get_running_loop().time() > self._repeats_until:
            return  # the reader has received this delta before
        if self._live and not self._over and self._bytes + len(frame) <= MAX_BUFFER_BYTES:
            self._push(frame)

    def join(self) -> None:
        """Receive events from the feed from now on."""
        self._live = True
        if self.expect_repeats():
            self._tail.announce(self._feed)

    def expect_repeats(self) -> bool:
        """Accept repeated deltas for REPEATS_SECONDS. Return whether this reader is live and receives deltas."""
        if self._live and not self._over and self._encoding is None:
            self._repeats_until = asyncio.get_running_loop().time() + REPEATS_SECONDS
            return True
        return False

    def _push(self, frame: bytes) -> None:
        if not frame:
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        self._wake()

    async def _wait(self, seconds: float) -> None:
        # An Event with a timeout would have the same effect but needs more memory, and most readers are idle.
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
        """Read a page. At the end of the stored events, join the feed."""
        page = await self._tail.page(self._feed.run_id, self._seq)
        if self._over:
            return
        if page.lines:
            self._push(page.frames(self._encoding))
            self._seq = page.last
        if page.more:
            return
        if page.may_be_last and await self._tail.is_over(self._feed.run_id, self._seq):
            self.complete = True
            self.shut()
        elif self._seq >= self._feed.seq:
            # A reader that is ahead of its feed receives nothing until the feed has caught up.
            self.join()


class Tail:
    """Serves the readers of streams. Call start() and stop() once, and follow() for each reader."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus
        self._feeds: dict[str, Feed] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._pages = PageReads(database)
        # The runs whose feeds must read the database.
        self._stale: set[str] = set()
        self._when_shut: set[Callable[[], None]] = set()

    @property
    def followers(self) -> int:
        """The number of readers in this process."""
        return sum(len(feed.followers) for feed in self._feeds.values())

    @property
    def stopping(self) -> bool:
        """Whether the tail is ending its streams."""
        return self._stopping

    async def start(self) -> None:
        """Start to read the database for all readers."""
        self._stopping = False
        self._task = asyncio.create_task(self._loop(), name="runlane-tail")

    async def stop(self) -> None:
        """End every stream, so that readers reconnect to another process. Safe to call twice."""
        self.shut_all()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        # Pending reads complete first, so that nothing reads from a database that is closed next.
        await self._pages.complete(SAFETY_POLL_SECONDS)

    def shut_all(self) -> None:
        """End every stream, and new streams at once. The loop continues for readers of pending frames."""
        self._stopping = True
        for feed in list(self._feeds.values()):
            self._shut(feed)
        for callback in tuple(self._when_shut):
            callback()

    def when_shut(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call this when streams end. Return a function that removes the callback. Readers of several runs use it."""
        self._when_shut.add(callback)
        return lambda: self._when_shut.discard(callback)

    async def follow(self, run_id: str, after: int, encoding: Encoding | None = None) -> Follower:
        """Return a reader of the run's events after a number. Raise RunNotFound or InvalidRequest."""
        follower, feed = self._enter(run_id, after, encoding)
        try:
            positions = await read_positions(self._database, [run_id])
            if not positions:
                raise RunNotFound(run_id)
            if not 0 <= after <= positions[0].last_seq:
                raise InvalidRequest(f"Run {run_id} has {positions[0].last_seq} events; {after} does not exist.")
        except BaseException:
            follower.close()
            raise
        if feed.seq < 0:
            feed.seq = positions[0].last_seq
            if run_id in self._stale:
                self._changed.set()  # a notice arrived during the read, which may have missed its event
        if self._stopping:
            follower.shut()
        return follower

    def follow_new(self, run_id: str, encoding: Encoding | None = None) -> Follower:
        """Return a reader of a run that this process has just accepted, after the event of its acceptance.

        The reader joins its feed at once, so the notice of the claim is forwarded without a read. If that notice was
        sent before, one read that many new readers share finds the claim.
        """
        follower, feed = self._enter(run_id, ACCEPTED_SEQ, encoding)
        feed.seq = max(feed.seq, ACCEPTED_SEQ)
        if feed.seq == ACCEPTED_SEQ:
            follower.join()
            if not self._bus.confirms_followers:
                self._read_again(feed)
        if self._stopping:
            follower.shut()
        return follower

    def _enter(self, run_id: str, after: int, encoding: Encoding | None) -> tuple[Follower, Feed]:
        feed = self._feeds.get(run_id)
        if feed is None:
            feed = self._feeds[run_id] = Feed(run_id)
            # The subscription begins before the read, so an event committed in between is received, read, or both.
            feed.unfollow = self._bus.follow(run_id, partial(self._receive, feed))
        follower = Follower(self, feed, after, encoding)
        feed.followers.add(follower)
        return follower, feed

    def leave(self, feed: Feed, follower: Follower) -> None:
        """Remove a reader. The last reader ends the feed."""
        feed.followers.discard(follower)
        if not feed.followers and self._feeds.get(feed.run_id) is feed:
            del self._feeds[feed.run_id]
            feed.unfollow()

    def announce(self, feed: Feed) -> None:
        """Ask the run's worker to publish the live text of open answers again, for a reader that has missed it."""
        self._bus.announce_reader(feed.run_id)

    async def page(self, run_id: str, after: int) -> Page:
        """Return stored events of a run. Readers share the reads."""
        return await self._pages.get(run_id, after)

    async def is_over(self, run_id: str, seq: int) -> bool:
        """Return whether no event follows this number. A retried run continues after `done`; a deleted run does not."""
        positions = await read_positions(self._database, [run_id])
        return not positions or (positions[0].ended and positions[0].last_seq <= seq)

    def _receive(self, feed: Feed, message: Notice | Delta) -> None:
        if isinstance(message, Delta):
            frame = delta_frame(message)
            for follower in feed.followers:
                follower.on_delta(frame, repeat=message.repeat)
            return
        for line in message.lines:
            if feed.seq >= 0 and line.seq == feed.seq + 1:
                self._forward(feed, line)
        # If the subscription has just begun, earlier live text was missed here.
        if message.last_seq < 0 and [follower for follower in feed.followers if follower.expect_repeats()]:
            self.announce(feed)
        if message.last_seq < 0 or message.last_seq > feed.seq:
            self._read_again(feed)

    def _read_again(self, feed: Feed) -> None:
        self._stale.add(feed.run_id)
        self._changed.set()

    def _forward(self, feed: Feed, line: StoredEvent) -> None:
        feed.seq = line.seq
        frame = line_frame(feed.run_id, line) if any(one.shares_frames for one in feed.followers) else b""
        for follower in tuple(feed.followers):
            follower.on_event(line, frame)

    def _shut(self, feed: Feed) -> None:
        for follower in tuple(feed.followers):
            follower.shut()

    async def _loop(self) -> None:
        """Bring feeds up to date with the database. During an outage readers keep their streams."""
        clock = asyncio.get_running_loop().time
        swept_at = clock()
        while True:
            poll_seconds = SAFETY_POLL_SECONDS if self._bus.reaches_others else POLL_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(swept_at + poll_seconds):
                    await self._changed.wait()
            self._changed.clear()
            stale, self._stale = self._stale, set[str]()
            if clock() >= swept_at + poll_seconds:
                # Notices of other processes may be lost, however many arrive.
                stale, swept_at = set(self._feeds), clock()
            try:
                await self._repair(stale)
            except Unavailable as error:
                outage.failed("a read of events", str(error))
                await asyncio.sleep(SAFETY_POLL_SECONDS)
            except Exception:
                log.exception("tail_failed")
                await asyncio.sleep(SAFETY_POLL_SECONDS)

    async def _repair(self, run_ids: Collection[str]) -> None:
        followed = {run_id: self._feeds[run_id] for run_id in run_ids if run_id in self._feeds}
        feeds = {run_id: feed for run_id, feed in followed.items() if feed.seq >= 0}
        self._stale |= followed.keys() - feeds.keys()  # these feeds are read after the first read of their reader
        if not feeds:
            return
        positions = {position.run_id: position for position in await read_positions(self._database, list(feeds))}
        for run_id, feed in feeds.items():
            position = positions.get(run_id)
            if position is None:
                self._shut(feed)  # retention has deleted the run
            elif position.first_seq > feed.seq + 1:
                feed.leave_to_pages(position.last_seq)  # retention has deleted events that it has not forwarded
        behind = [(one, feeds[one].seq) for one, position in positions.items() if position.last_seq > feeds[one].seq]
        while behind:
            found = await read_lines(self._database, behind, PAGE)
            more: list[tuple[str, int]] = []
            for run_id, _ in behind:
                feed, lines = feeds[run_id], found.get(run_id, [])
                for line in lines:
                    if not line.data:
                        feed.leave_to_pages(positions[run_id].last_seq)
                        break
                    if line.seq == feed.seq + 1:
                        self._forward(feed, line)
                if len(lines) == PAGE and feed.seq < positions[run_id].last_seq:
                    more.append((run_id, feed.seq))
            behind = more
