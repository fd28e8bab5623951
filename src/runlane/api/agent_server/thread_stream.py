"""Follow a thread: the streams of its runs, one after another, as one stream that stays open between runs.

Runs of a thread are executed one at a time, in the order in which they were accepted, so a reader needs the feed of one
run at a time. The id of an event is `RUN.NUMBER`: the time at which its run was accepted, in microseconds, and the
number of the event in the run. A reader that reconnects, to any server, resumes at the exact event.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from runlane.api.agent_server.frames import GraphEncoding
from runlane.api.agent_server.native_stream import NativePosition, NativeRunFollower, native_fold
from runlane.api.agent_server.run_stream import RunFollower
from runlane.api.agent_server.state_updates import STATE_UPDATE, StateUpdates
from runlane.api.error_responses import ImpossibleEvent
from runlane.api.services import Services
from runlane.domain.access import Permission, Principal
from runlane.domain.thread import Thread, ThreadRun
from runlane.errors import RunlaneError, RunNotFound, UnknownThread
from runlane.store.queue.events import read_positions
from runlane.store.sql.database import read_clock
from runlane.store.threads.thread_runs import find_thread_run, newest_run_at, runs_after
from runlane.store.threads.threads import find_thread

# The interval at which a reader polls for runs that other processes have accepted, without and with a bus.
POLL_SECONDS: Final = 1.0
SAFETY_POLL_SECONDS: Final = 5.0
RUN_MODES: Final = "run_modes"
_OF_RUNS: Final = frozenset({RUN_MODES, "lifecycle"})
_CURSOR: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,10})")


class ThreadCursor(NamedTuple):
    """A reader's position: the time at which a run was accepted, and the number of an event in the run."""

    run_at_us: int = 0
    seq: int = 0

    @classmethod
    def parse(cls, text: str) -> ThreadCursor:
        """Return the position of an event id. `-` and `-1` are the position before the first run."""
        if text in ("-", "-1"):
            return cls()
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise ImpossibleEvent(f"Last-Event-ID {text[:40]!r} is not an event id of a thread. Use - for everything.")
        return cls(int(found[1]), int(found[2]))


class FollowedRun(Protocol):
    """A reader of one run of a thread."""

    @property
    def ended(self) -> bool: ...

    @property
    def complete(self) -> bool: ...

    async def next(self, timeout_seconds: float) -> bytes: ...

    def revoke(self, why: RunlaneError) -> None: ...

    def close(self) -> None: ...


class FollowedThread(NamedTuple):
    """The thread of a reader, without its state: a reader may stay for hours, and states are large."""

    tenant: str
    id: str
    key: str


class ThreadFollower:
    """One reader of one thread, with the interface of Follower.

    While it reads a run, it subscribes to that run only. While it waits for the next run, it subscribes to the thread.
    """

    __slots__ = (
        "_after",
        "_current",
        "_modes",
        "_notified",
        "_over",
        "_parts",
        "_run_at_us",
        "_shows_runs",
        "_thread",
        "_unfollow",
        "_update_frames",
        "_updates",
        "_waiting",
        "_when_closed",
        "complete",
        "refusal",
    )

    def __init__(
        self,
        parts: Services,
        thread: Thread,
        after: ThreadCursor,
        modes: Sequence[str],
        updates: StateUpdates | None = None,
    ) -> None:
        self._parts = parts
        self._thread = FollowedThread(thread.tenant, thread.id, thread.key)
        self._after = after
        self._modes = modes
        # The reader opens the run of the cursor again.
        self._run_at_us = max(0, after.run_at_us - 1)
        self._current: FollowedRun | None = None
        self._updates = updates
        self._shows_runs = updates is None or not _OF_RUNS.isdisjoint(modes)
        # Frames of updates between two runs.
        self._update_frames = b""
        self._over = False
        self.complete = False
        self.refusal: RunlaneError | None = None
        self._notified = False
        self._waiting: asyncio.Future[None] | None = None
        self._unfollow: Callable[[], None] | None = None
        self._when_closed: Callable[[], None] = call_all

    @property
    def ended(self) -> bool:
        """True when the stream has ended and all events were returned."""
        return self._over

    async def next(self, timeout_seconds: float) -> bytes:
        """Return everything that is pending; empty after the timeout or when the stream has ended."""
        deadline = time.monotonic() + timeout_seconds
        while not self._over:
            left = max(0.0, deadline - time.monotonic())
            if self._current is None and not await self._open_next():
                if self._parts.tail.stopping:
                    self._over = True
                elif left > 0 and not self._update_frames:
                    await self._wait(left)
            if self._update_frames:
                frames, self._update_frames = self._update_frames, b""
                return frames
            # The reader's access may have been revoked while it opened the run.
            if self._current is not None and not self._over:
                found = await self._current.next(left)
                if self._current.ended:
                    self._leave_run()
                if found and self._shows_runs:
                    return found
            if left <= 0:
                break
        return b""

    def when_closed(self, call: Callable[[], None]) -> None:
        """Call this when the follower is closed."""
        self._when_closed = call

    def close(self) -> None:
        """Stop reading. Safe to call twice."""
        self._end_waiting()
        if self._current is not None:
            self._current.close()
        self._when_closed()

    def revoke(self, why: RunlaneError) -> None:
        """End the stream because the reader's access was revoked."""
        self.refusal = why
        self._over = True
        self._notice()
        if self._current is not None:
            self._current.revoke(why)

    async def _open_next(self) -> bool:
        """Open the next run. Return False if none exists yet."""
        if await self._open_following():
            return True
        if self._unfollow is None:
            # The subscription precedes the second query, so a run that is accepted after the first query is noticed.
            self._follow()
            if await self._open_following():
                return True
        try:
            await find_thread(self._parts.database, self._thread.tenant, self._thread.id)
        except UnknownThread:
            self._over = self.complete = True
        return False

    async def _open_following(self) -> bool:
        # The flag is cleared before the query, so a run that is accepted during the query is noticed.
        self._notified = False
        while found := await runs_after(self._parts.database, self._thread.key, self._run_at_us, 10):
            for run_at_us, run_id in found:
                self._run_at_us = run_at_us
                await self._read_updates(run_at_us)
                with contextlib.suppress(RunNotFound):  # retention has deleted the run, or it was rolled back
                    await self._open(run_at_us, run_id)
                    self._end_waiting()
                    return True
        await self._read_updates()
        return False

    async def _read_updates(self, *before_us: int) -> None:
        if self._updates is not None:
            self._update_frames += await self._updates.frames(*before_us)

    def _follow(self) -> None:
        """Subscribe to new runs of the thread and to the end of streams."""
        unfollow = self._parts.connection.bus.follow(self._thread.key, self._notice)
        self._unfollow = partial(call_all, unfollow, self._parts.tail.when_shut(self._notice))

    def _end_waiting(self) -> None:
        unfollow, self._unfollow = self._unfollow, None
        if unfollow is not None:
            unfollow()

    def _notice(self, _message: object = None) -> None:
        self._notified = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _open(self, run_at_us: int, run_id: str) -> None:
        run = await find_thread_run(self._parts.database, self._thread.tenant, self._thread.id, run_id)
        modes: Sequence[str] = run.kwargs["stream_mode"] if RUN_MODES in self._modes else ()
        seq = self._after.seq if run_at_us == self._after.run_at_us else 0
        if run.is_native:
            await self._open_native(run, modes, seq, f"{run_at_us}.")
            return
        encoding = GraphEncoding(modes, seq, prefix=f"{run_at_us}.")
        follower = await self._parts.tail.follow(run_id, encoding.reads_after, encoding)
        self._current = RunFollower(self._parts.results, run_id, follower)

    async def _open_native(self, run: ThreadRun, modes: Sequence[str], seq: int, prefix: str) -> None:
        database = self._parts.database
        thread = await find_thread(database, self._thread.tenant, self._thread.id)
        fold = await native_fold(database, thread, run)
        follower = await self._parts.tail.follow(run.id, 0)
        encoding = GraphEncoding(modes, prefix=prefix)
        self._current = NativeRunFollower(
            database, follower, fold, encoding, NativePosition(seq), ends_at_questions=False, numbers_text=False
        )

    def _leave_run(self) -> None:
        follower, self._current = self._current, None
        if follower is not None:
            follower.close()
            # The stream is not complete: this process stops, or the reader's access was revoked.
            self._over = self._over or not follower.complete
            if not self._over:
                self._follow()

    async def _wait(self, seconds: float) -> None:
        if self._notified:
            return
        poll = SAFETY_POLL_SECONDS if self._parts.connection.bus.reaches_others else POLL_SECONDS
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(min(poll, seconds), self._notice)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None


async def follow_thread(
    parts: Services, principal: Principal, thread: Thread, modes: Sequence[str], last_event_id: str | None
) -> ThreadFollower:
    """Return a reader of a thread after an event or, without an event, from now on."""
    after = await _newest(parts, thread) if not last_event_id else ThreadCursor.parse(last_event_id)
    updates: StateUpdates | None = None
    if STATE_UPDATE in modes:
        after_us = after.run_at_us if last_event_id else await read_clock(parts.database)
        updates = StateUpdates(parts.database, thread.key, thread.id, after_us)
    release = parts.streams.take(principal)
    follower = ThreadFollower(parts, thread, after, modes, updates)
    unguard = parts.revocation.guard(principal, Permission.RUNS_READ, follower.revoke)
    follower.when_closed(partial(call_all, release, unguard))
    return follower


async def _newest(parts: Services, thread: Thread) -> ThreadCursor:
    run_at_us = await newest_run_at(parts.database, thread.key)
    for at_us, run_id in await runs_after(parts.database, thread.key, run_at_us - 1, 1):
        for position in await read_positions(parts.database, [run_id]):
            return ThreadCursor(at_us + 1, 0) if position.ended else ThreadCursor(at_us, position.last_seq)
    return ThreadCursor(run_at_us + 1, 0)


def call_all(*calls: Callable[[], None]) -> None:
    """Call all of these functions."""
    for call in calls:
        call()
