"""Follow a conversation: the streams of its turns, one after another, as one stream.

Turns run one at a time, so a reader needs the feed of one run at a time. An event's id is `TURN.NUMBER`: the turn and
the number of the event in its run, so a reader that reconnects resumes at the exact event. The frames are those of the
run; only the id and the field `chat_turn` are added (model answers already have a field `turn`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from runlane.api.error_responses import ImpossibleEvent
from runlane.api.tail import Follower, Tail
from runlane.bus import Bus
from runlane.errors import InvalidRequest, RunlaneError, RunNotFound
from runlane.store.chat.turns import Turn, read_turns
from runlane.store.sql.database import Database

# The data of a frame is one line of JSON, so the text of a message cannot look like the beginning of a line.
_BEGINNING: Final = re.compile(rb"^(id: |data: \{)", re.MULTILINE)
_CURSOR: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")
_SKIPPED: Final = 100
# The interval at which a follower polls for turns that other processes have accepted, without and with a bus.
POLL_SECONDS: Final = 1.0
SAFETY_POLL_SECONDS: Final = 5.0


class ChatCursor(NamedTuple):
    """A reader's position: the number of an event in the run of a turn. Turn 0 is before the first turn."""

    turn: int = 0
    seq: int = 0

    def __str__(self) -> str:
        return f"{self.turn}.{self.seq}"

    @classmethod
    def of(cls, text: str) -> ChatCursor:
        """Parse a cursor that a client sent."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise ImpossibleEvent(f"{text[:40]!r} is not an event id of a chat. Use TURN.NUMBER, such as 2.17.")
        return cls(int(found[1]), int(found[2]))


class ChatFollower:
    """One reader of one session, with the interface of Follower."""

    def __init__(
        self, database: Database, tail: Tail, bus: Bus, session_id: str, after: ChatCursor, follow: bool
    ) -> None:
        self._database = database
        self._tail = tail
        self._bus = bus
        self._session_id = session_id
        self._after = after
        self._stays = follow
        self._turn = max(0, after.turn - 1)
        self._current: Follower | None = None
        self._over = False
        self.complete = False
        self.refusal: RunlaneError | None = None
        self._changed = asyncio.Event()
        self._unfollow = bus.follow(session_id, lambda _notice: self._changed.set())
        self._unsubscribe_shutdown = tail.when_shut(self._changed.set)
        self._when_closed: Callable[[], None] = lambda: None
        self._waiting: list[bytes] = []

    @property
    def ended(self) -> bool:
        """True when the stream has ended and all events were returned."""
        return self._over and not self._waiting

    async def open(self, last_turn: int) -> None:
        """Move to the requested cursor. Raise ImpossibleEvent if it does not exist."""
        if self._after.turn > last_turn:
            raise ImpossibleEvent(f"Chat {self._session_id} has {last_turn} turns; {self._after} does not exist.")
        try:
            await self._open_next()
        except InvalidRequest as error:
            raise ImpossibleEvent(str(error)) from None

    async def next(self, timeout_seconds: float) -> bytes:
        """Return everything that is pending; empty after the timeout or when the stream has ended."""
        deadline = time.monotonic() + timeout_seconds
        while not self._over:
            left = deadline - time.monotonic()
            if self._current is not None:
                found = await self._current.next(max(0.0, left))
                if found:
                    self._waiting.append(mark(found, self._turn))
                if self._current.ended:
                    self._leave_turn()
            elif not await self._open_next():
                if not self._stays or self._tail.stopping:
                    self.complete = not self._tail.stopping
                    self._over = True
                elif left > 0 and not self._waiting:
                    await self._wait(left)
            if self._waiting or left <= 0:
                break
        waiting = b"".join(self._waiting)
        self._waiting.clear()
        return waiting

    def when_closed(self, call: Callable[[], None]) -> None:
        """Call this when the follower is closed."""
        self._when_closed = call

    def close(self) -> None:
        """Stop reading. Safe to call twice."""
        self._unfollow()
        self._unsubscribe_shutdown()
        if self._current is not None:
            self._current.close()
        self._when_closed()

    def revoke(self, why: RunlaneError) -> None:
        """End the stream because the reader's access was revoked. Pending frames are dropped."""
        self.refusal = why
        self._over = True
        self._waiting.clear()
        self._changed.set()
        if self._current is not None:
            self._current.revoke(why)

    async def _open_next(self) -> bool:
        """Open the next turn. Return False if none exists yet."""
        # The flag is cleared before the query, so a turn that is posted during the query is noticed.
        self._changed.clear()
        skipped = False
        while True:
            turns = await read_turns(self._database, self._session_id, self._turn, _SKIPPED)
            for turn in turns:
                if turn.kept and await self._open_turn(turn):
                    if skipped:
                        self._waiting.append(_skipped(self._session_id, turn.turn))
                    return True
                self._turn, skipped = turn.turn, True
            if not turns:
                return False

    async def _open_turn(self, turn: Turn) -> bool:
        seq = self._after.seq if turn.turn == self._after.turn else 0
        try:
            self._current = await self._tail.follow(turn.run_id, seq)
        except RunNotFound:
            # Retention has deleted the run.
            return False
        self._turn = turn.turn
        return True

    def _leave_turn(self) -> None:
        follower, self._current = self._current, None
        if follower is not None:
            follower.close()
            # The stream is not complete: this process stops, or the reader's access was revoked.
            self._over = not follower.complete

    async def _wait(self, seconds: float) -> None:
        poll = SAFETY_POLL_SECONDS if self._bus.reaches_others else POLL_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(poll, seconds)):
                await self._changed.wait()


def mark(frames: bytes, turn: int) -> bytes:
    """Return the frames of a run as frames of a turn."""
    event_id, field = b"id: %d." % turn, b'data: {"chat_turn":%d,' % turn
    return _BEGINNING.sub(lambda found: event_id if found[1] == b"id: " else field, frames)


def mark_json(line: str, turn: int) -> str:
    """Return the JSON of one event as an event of a turn."""
    return f'{{"chat_turn":{turn},{line[1:]}'


def _skipped(session_id: str, first_turn: int) -> bytes:
    event = f'{{"type":"truncated","session_id":"{session_id}","first_turn":{first_turn}}}'
    return f"data: {event}\n\n".encode()
