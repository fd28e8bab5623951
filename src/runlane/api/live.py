"""The live hub: send hints about changes to open pages, which then read the changed data again.

A frame names the changed topics and has no other content. So a lost frame delays a page, and a superfluous frame costs
one read. The hub subscribes to the bus only while a page is open. It collects hints and sends them to each page at most
every quarter of a second. If no bus connects the processes, the hub polls every two seconds for changes of other
processes. Frames are numbered; a page that reconnects receives the missed frames, or a hint to read everything again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import orjson
import structlog

from runlane.access.policy import may_see
from runlane.bus import Bus
from runlane.bus.hint_sender import ANNOUNCE_SECONDS, read_hints
from runlane.domain.access import Permission, Principal
from runlane.domain.events import Delta, Notice
from runlane.domain.hints import HINTS_KEY, MAX_HINT_IDS, Hint, HintSet, Topic
from runlane.domain.ids import new_id
from runlane.errors import RunlaneError, Unavailable
from runlane.observability.outage import outage
from runlane.store.queue.change_poll import ChangePoll
from runlane.store.queue.live_runs import find_changed, read_data_version
from runlane.store.sql.database import Database

log = structlog.get_logger(__name__)

# The minimum time between two frames for a page.
FRAME_SECONDS: Final = 0.25
POLL_SECONDS: Final = 2.0
# The interval at which pages read everything again if the database has no bus.
WHOLE_SECONDS: Final = 60.0
# The number of frames that are kept for pages which reconnect.
KEPT_FRAMES: Final = 1000
# The permission that the list of a topic needs, if it is not RUNS_READ.
_NEEDS: Final = {
    Topic.LANES: Permission.WORKERS_VIEW,
    Topic.WORKERS: Permission.WORKERS_VIEW,
    Topic.ACCESS: Permission.KEYS_MANAGE,
    Topic.MEMORY: Permission.MEMORY_READ,
    Topic.SECRETS: Permission.SECRETS_MANAGE,
}
# Topics whose hints may concern every tenant.
_SHARED: Final = frozenset({Topic.ALL, Topic.LANES, Topic.WORKERS, Topic.DEFINITIONS, Topic.LIMITS})


class LiveFollower:
    """One open page. It receives the hints of its tenant, which are merged while it does not read."""

    def __init__(self, hub: LiveHub, principal: Principal) -> None:
        self._hub = hub
        self._principal = principal
        self._pending = HintSet()
        self._number = 0
        self._first: bytes | None = None
        self._wake = asyncio.Event()
        self._over = False
        self._when_closed: Callable[[], None] = lambda: None
        self.complete = False
        self.refusal: RunlaneError | None = None

    @property
    def ended(self) -> bool:
        return self._over

    def begin(self, frame: bytes) -> None:
        """Send this frame first."""
        self._first = frame

    def push(self, number: int, hints: Sequence[Hint]) -> None:
        """Add those hints of a frame that this page may see."""
        for hint in hints:
            if self._sees(hint):
                self._pending.add(hint)
        self._number = number
        if self._pending:
            self._wake.set()

    async def next(self, timeout_seconds: float) -> bytes:
        """Return the next frame; empty after the timeout or at the end."""
        try:
            async with asyncio.timeout(timeout_seconds):
                if self._first is None:
                    await self._wake.wait()
                else:
                    await self._hub.listens.wait()
        except TimeoutError:
            return b""
        first, self._first = self._first, None
        if first is not None:
            return first
        self._wake.clear()
        hints = self._pending.take()
        return b"" if self._over or not hints else self._hub.encode(self._number, hints)

    def when_closed(self, call: Callable[[], None]) -> None:
        """Call this when the follower is closed."""
        self._when_closed = call

    def close(self) -> None:
        """Stop. Safe to call twice."""
        self._hub.leave(self)
        self._when_closed()

    def shut(self) -> None:
        """End the stream from this side."""
        self._over = True
        self._wake.set()

    def revoke(self, why: RunlaneError) -> None:
        """End the stream because the reader's access was revoked."""
        self.refusal = why
        self.shut()

    def _sees(self, hint: Hint) -> bool:
        needed = _NEEDS.get(Topic(hint.topic), Permission.RUNS_READ) if hint.topic in set(Topic) else None
        if needed is None or needed not in self._principal.permissions:
            return False
        if hint.tenant is None:
            return hint.topic in _SHARED or self._principal.everywhere
        return may_see(self._principal, hint.tenant)


class LiveHub:
    """Subscribes to the bus while pages are open. It must be used from one event loop."""

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus
        self._followers: set[LiveFollower] = set()
        self._pending = HintSet()
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        # Set when every later change will be detected. Data that a page reads after its first frame is complete, or
        # another hint follows.
        self.listens = asyncio.Event()
        self._unfollow: Callable[[], None] = lambda: None
        # A hub without pages misses hints, so its frame numbers begin again under another epoch.
        self._epoch = ""
        self._number = 0
        self._frames: deque[tuple[int, tuple[Hint, ...]]] = deque(maxlen=KEPT_FRAMES)

    @property
    def followers(self) -> int:
        """The number of open pages."""
        return len(self._followers)

    def follow(self, principal: Principal, after: str | None) -> LiveFollower:
        """Return a reader that continues after the id of a frame, if the hub still has the frames that followed it."""
        if not self._followers:
            self._begin()
        follower = LiveFollower(self, principal)
        follower.begin(self.encode(self._number, (), hello=True))
        missed = None if after is None else self._missed(after)
        if after is not None:
            follower.push(self._number, [Hint(Topic.ALL)] if missed is None else missed)
        self._followers.add(follower)
        return follower

    def leave(self, follower: LiveFollower) -> None:
        """Remove a page. Without pages, the hub stops listening to the bus."""
        self._followers.discard(follower)
        if not self._followers:
            self._end()

    def shut_all(self) -> None:
        """End every stream."""
        for follower in tuple(self._followers):
            follower.shut()

    async def stop(self) -> None:
        """Stop. Safe to call twice."""
        self.shut_all()
        tasks = self._tasks
        self._end()
        if tasks:
            await asyncio.wait(tasks)

    def encode(self, number: int, hints: Sequence[Hint], *, hello: bool = False) -> bytes:
        """Return an SSE frame."""
        body = {
            "type": "hello" if hello else "hints",
            "live": self._bus.reaches_others or self._bus.kind == "none",
            "hints": [_to_dict(hint) for hint in hints],
        }
        return b"id: %s-%d\ndata: %s\n\n" % (self._epoch.encode(), number, orjson.dumps(body))

    def _begin(self) -> None:
        self._epoch = new_id("live").removeprefix("live_")
        self._number = 0
        self._frames.clear()
        self._unfollow = self._bus.follow(HINTS_KEY, self._receive)
        self.listens.clear()
        self._tasks = [
            asyncio.create_task(self._send_loop(), name="runlane-live"),
            asyncio.create_task(self._announce_loop(), name="runlane-live-announce"),
            asyncio.create_task(self._poll_loop(), name="runlane-live-poll"),
        ]

    def _end(self) -> None:
        self._unfollow()
        self._unfollow = lambda: None
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()

    def _receive(self, message: Notice | Delta) -> None:
        for hint in read_hints(message):
            self._pending.add(hint)
        self._changed.set()

    async def _announce_loop(self) -> None:
        while True:
            self._bus.announce_reader(HINTS_KEY)
            await asyncio.sleep(ANNOUNCE_SECONDS)

    async def _send_loop(self) -> None:
        """Send the collected hints. After an error, the pages read everything again."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                hints = await self._resolve(self._pending.take())
            except Unavailable as error:
                outage.failed("the live hub", str(error))
                hints = [Hint(Topic.ALL)]
            except Exception:
                log.exception("live_failed")
                hints = [Hint(Topic.ALL)]
            self._number += 1
            self._frames.append((self._number, tuple(hints)))
            for follower in tuple(self._followers):
                follower.push(self._number, hints)
            await asyncio.sleep(FRAME_SECONDS)

    async def _poll_loop(self) -> None:
        """Poll for changes of other processes, if no bus connects them."""
        poll = ChangePoll(self._database)
        version: int | None = None
        next_whole = time.monotonic() + WHOLE_SECONDS
        first = True
        while True:
            # The first poll is the base of comparison for later polls.
            await asyncio.sleep(0 if first else POLL_SECONDS)
            if self._bus.reaches_others:
                first = False
                self.listens.set()
                continue
            found: int | None = None
            hints: Sequence[Hint] = [Hint(Topic.ALL)]
            if self._database.dialect == "sqlite":
                try:
                    found = await read_data_version(self._database)
                    hints = await poll.look() if found != version else ()
                except Unavailable as error:
                    outage.failed("the live hub", str(error))
                except Exception:
                    log.exception("live_failed")
            if found is not None and found != version and time.monotonic() >= next_whole:
                # Data that a poll does not compare, such as the tags of old runs, may have changed as well.
                hints = [Hint(Topic.ALL)]
                next_whole = time.monotonic() + WHOLE_SECONDS
            version = found
            for hint in () if first else hints:
                self._pending.add(hint)
                self._changed.set()
            first = False
            self.listens.set()

    async def _resolve(self, hints: Sequence[Hint]) -> list[Hint]:
        """Return the hints with the tenants of their runs, and the further topics that the status of a run affects."""
        resolved = HintSet()
        run_ids: dict[str, None] = {}
        asked: set[str] = set()
        for hint in hints:
            if hint.tenant is None and hint.topic in (Topic.RUNS, Topic.INBOX):
                run_ids.update(dict.fromkeys(hint.ids))
                asked.update(hint.ids if hint.topic == Topic.INBOX else ())
                if not hint.ids:
                    # The tenants of so many runs are not looked up.
                    resolved.add(Hint(Topic.ALL))
            else:
                resolved.add(hint)
        for run in await find_changed(self._database, list(run_ids)[: 2 * MAX_HINT_IDS]) if run_ids else ():
            resolved.add(Hint(Topic.RUNS, run.tenant, (run.id,)))
            if run.asks or run.id in asked:
                resolved.add(Hint(Topic.INBOX, run.tenant, (run.id,)))
            if run.failed:
                resolved.add(Hint(Topic.DEAD_LETTERS, run.tenant, (run.id,)))
        return resolved.take()

    def _missed(self, after: str) -> list[Hint] | None:
        """Return the hints after a frame; None if the hub no longer has them."""
        epoch, _, number = after.rpartition("-")
        if epoch != self._epoch or not number.isdecimal() or len(number) > 15:
            return None
        first = self._frames[0][0] if self._frames else self._number + 1
        if not first - 1 <= int(number) <= self._number:
            return None
        return [hint for position, hints in self._frames if position > int(number) for hint in hints]


def _to_dict(hint: Hint) -> dict[str, object]:
    return {"topic": hint.topic, "tenant": hint.tenant, "ids": list(hint.ids) or None}
