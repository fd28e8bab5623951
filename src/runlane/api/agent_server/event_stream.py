"""Follow the events of a thread across its runs and the pauses between them.

Between runs the reader waits without a worker and without a database connection, for any length of time.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Final

from runlane.api.agent_server.event_channels import MAX_NUMBER, EventNumber, EventSelection, UnionSelection
from runlane.api.agent_server.native_fold import NativeFold
from runlane.api.agent_server.native_questions import interrupts_of
from runlane.api.agent_server.native_stream import native_fold
from runlane.api.agent_server.thread_events import EventEncoding, Framing
from runlane.api.agent_server.thread_stream import ThreadCursor, ThreadFollower, call_all
from runlane.api.error_responses import ImpossibleEvent
from runlane.api.openai.questions import open_questions
from runlane.api.services import Services
from runlane.api.tail import Follower
from runlane.domain.access import Permission, Principal
from runlane.domain.events import EventType, StoredEvent
from runlane.domain.graph import ThreadStatus
from runlane.domain.text import load_json
from runlane.domain.thread import Thread
from runlane.errors import RunlaneError, RunNotFound
from runlane.store.sql.database import Database, read_clock
from runlane.store.threads.thread_runs import (
    find_thread_run,
    first_open_ordinal,
    newest_run_at,
    read_result,
    run_at_ordinal,
)
from runlane.store.threads.threads import find_thread

# A client subscribes after it has started a run, and the run may have ended by then.
_NEW_SECONDS: Final = 10.0
# The channels of a reader that only follows the status of runs.
_WATCHED: Final = frozenset({"lifecycle", "input"})


class EventRunFollower:
    """Reads the events of one run for one reader. `ThreadFollower` moves from run to run."""

    __slots__ = ("_database", "_encoding", "_ended", "_follower", "_run_id")

    def __init__(self, database: Database, run_id: str, follower: Follower, encoding: EventEncoding) -> None:
        self._database = database
        self._run_id = run_id
        self._follower = follower
        self._encoding = encoding
        self._ended = False

    @property
    def ended(self) -> bool:
        """True when the run has ended and all events were returned."""
        return self._ended or (self._follower.ended and not self._follower.complete)

    @property
    def complete(self) -> bool:
        """Whether the stream of the run ended because the run did."""
        return self._follower.complete

    async def next(self, timeout_seconds: float) -> bytes:
        """Return everything that is pending as one piece."""
        waiting = await self._follower.next(timeout_seconds)
        if self._follower.ended and self._follower.complete and not self._ended:
            # A run that was rolled back has no events.
            with contextlib.suppress(RunNotFound):
                waiting += self._encoding.ended(await read_result(self._database, self._run_id))
            self._ended = True
        return waiting

    def revoke(self, why: RunlaneError) -> None:
        """End the stream because the reader's access was revoked."""
        self._follower.revoke(why)

    def close(self) -> None:
        """Stop reading. Safe to call twice."""
        self._follower.close()


class NativeEventEncoding:
    """The events of a run of an agent or orchestration. Live text is omitted because it has no number."""

    def __init__(self, encoding: EventEncoding, fold: NativeFold) -> None:
        self._encoding = encoding
        self._fold = fold
        # The entry at which the run paused, until its questions are read.
        self.paused_at: int | None = None

    def event(self, run_id: str, line: StoredEvent) -> bytes:
        """Return the events of an entry of the log."""
        self.paused_at = line.seq if line.type == EventType.PAUSED else None
        event = {**load_json(line.data), "type": line.type, "attempt": line.attempt}
        return self._encoding.graph_events(line, self._fold.stored(event))

    def gap(self, run_id: str, first_seq: int) -> bytes:
        """Return the event which announces that earlier entries are no longer stored."""
        return self._encoding.gap(run_id, first_seq)


class NativeEventFollower(EventRunFollower):
    """Reads the events of a run that may ask questions, for one reader."""

    __slots__ = ("_native",)

    def __init__(
        self, database: Database, run_id: str, follower: Follower, encoding: EventEncoding, native: NativeEventEncoding
    ) -> None:
        super().__init__(database, run_id, follower, encoding)
        self._native = native

    async def next(self, timeout_seconds: float) -> bytes:
        """Return everything that is pending as one piece."""
        waiting = await super().next(timeout_seconds)
        paused_at = self._native.paused_at
        if paused_at is not None and not self.ended:
            waits = await open_questions(self._database, self._run_id, paused_at)
            if waits:
                waiting += self._encoding.asked(paused_at, interrupts_of(waits))
                self._native.paused_at = None
        return waiting


class EventFollower(ThreadFollower):
    """Reads the events of one thread for one reader."""

    __slots__ = ("_framing", "_number", "_subscription")

    def __init__(
        self,
        parts: Services,
        thread: Thread,
        after: ThreadCursor,
        number: int,
        subscription: EventSelection | UnionSelection,
        framing: Framing,
    ) -> None:
        super().__init__(parts, thread, after, ())
        self._number = number
        self._subscription = subscription
        self._framing = framing

    async def _open(self, run_at_us: int, run_id: str) -> None:
        run = await find_thread_run(self._parts.database, self._thread.tenant, self._thread.id, run_id)
        encoding = EventEncoding(run.ordinal, self._subscription, self._number, self._framing)
        database = self._parts.database
        if run.is_native:
            thread = await find_thread(database, self._thread.tenant, self._thread.id)
            native = NativeEventEncoding(encoding, await native_fold(database, thread, run))
            self._current = NativeEventFollower(
                database, run_id, await self._parts.tail.follow(run_id, 0, native), encoding, native
            )
            return
        follower = await self._parts.tail.follow(run_id, 0, encoding)
        self._current = EventRunFollower(database, run_id, follower, encoding)


async def follow_events(
    parts: Services,
    principal: Principal,
    thread: Thread,
    subscription: EventSelection,
    since: int | None,
    framing: Framing,
) -> EventFollower:
    """Return a reader of a thread's events after a number.

    Without a number, it reads the current run and later runs.
    """
    number = await start_number(parts.database, thread, subscription, since)
    return await follow_after(parts, principal, thread, subscription, number, framing)


async def follow_after(
    parts: Services,
    principal: Principal,
    thread: Thread,
    subscription: EventSelection | UnionSelection,
    number: int,
    framing: Framing,
) -> EventFollower:
    """Return a reader of a thread's events after a number, which `start_number` or an event returned.

    The reader counts as a stream of its key, and ends when the key is revoked.
    """
    release = parts.streams.take(principal)
    try:
        follower = await open_events(parts, thread, subscription, number, framing)
    except BaseException:
        release()
        raise
    unguard = parts.revocation.guard(principal, Permission.RUNS_READ, follower.revoke)
    follower.when_closed(partial(call_all, release, unguard))
    return follower


async def open_events(
    parts: Services,
    thread: Thread,
    subscription: EventSelection | UnionSelection,
    number: int,
    framing: Framing,
) -> EventFollower:
    """Return a reader for a caller that is already counted and authorized."""
    # A run that is accepted after the newest run has a later time. The time of the newest run is read first: a run that
    # is accepted between the two queries either has its ordinal in the result or is later than the newest run.
    newest_us = await newest_run_at(parts.database, thread.key)
    at = await run_at_ordinal(parts.database, thread.key, EventNumber.from_int(number).ordinal)
    cursor = ThreadCursor(newest_us + 1 if at is None else at[1])
    return EventFollower(parts, thread, cursor, number, subscription, framing)


async def start_number(database: Database, thread: Thread, subscription: EventSelection, since: int | None) -> int:
    """Return the number after which a reader begins. `since` is the position that the reader sent, if any."""
    return await _start(database, thread, subscription) if since is None else _checked(thread, since)


def _checked(thread: Thread, since: int) -> int:
    if since > MAX_NUMBER or EventNumber.from_int(since).ordinal > thread.run_count:
        raise ImpossibleEvent(f"The thread {thread.id} has no event {since}. Leave `since` out to read from now on.")
    return since


async def _start(database: Database, thread: Thread, subscription: EventSelection) -> int:
    """Return the start for a reader without a position: before the first open run, else after the newest run.

    `thread` was read before. A run that was open then may have ended since; the reader still receives all its events.
    """
    ordinal = await first_open_ordinal(database, thread.key)
    newest = thread.run_count
    if thread.status is ThreadStatus.BUSY:
        ordinal = newest if ordinal is None else min(ordinal, newest)
    elif ordinal is None:
        ordinal = newest if await _shows_newest(database, thread, subscription) else newest + 1
    return EventNumber(ordinal).to_int()


async def _shows_newest(database: Database, thread: Thread, subscription: EventSelection) -> bool:
    """Return whether a reader without a position receives the newest run, which has ended.

    If the thread is interrupted, the reader needs the questions of that run. The JavaScript SDK starts a run and then
    subscribes without a position, so a run that was accepted shortly before is shown as well. The Python SDK sends a
    position for the events that it reads, and follows the lifecycle without a position before it starts a run. It would
    take the end of an earlier run for the end of its own run, unless the thread was created with that run.
    """
    if thread.status is ThreadStatus.INTERRUPTED:
        return True
    at = await run_at_ordinal(database, thread.key, thread.run_count)
    if at is None or await read_clock(database) - at[1] >= _NEW_SECONDS * 1_000_000:
        return False
    created_with_it = thread.run_count == 1 and at[1] - thread.created_at_us <= 1_000_000
    return created_with_it or not subscription.channels <= _WATCHED
