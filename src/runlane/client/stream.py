"""Following a run across broken connections, so that a reader sees every number once and in order.

The place to go on from is the last number that was handed out, never one that was only received. A frame that was cut,
a repeated number or a hole in the numbers therefore costs a reconnect at most: the server reads what is missing from
the database. What has no number is handed out as it comes, except from an attempt that is over.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import httpx2

from runlane.client.http import PREFIX, ErrorResponse, Http
from runlane.client.sse import SseParser
from runlane.client.wire import event_from, load_event
from runlane.domain.events import Event, EventType
from runlane.domain.views import LiveEvent

# The server's last word when a reader comes back after the end.
_COMPLETE = "stream_complete"
# Its word for a hole that stays: retention took the events in between.
_TRUNCATED = "truncated"
# A stream outlives a server's bad moment: too many requests, or a fault of its own.
_RETRYABLE = frozenset({429, 500, 502, 503, 504})


class _Hole(Exception):
    """A number was skipped inside one connection, which only a damaged stream does."""


class StreamInterrupted(Exception):
    """The stream ended although the run or the conversation has not."""


class StreamPosition:
    """How far a reader has come: the turn, which is 0 for a run alone, and the number. Kept across connections."""

    def __init__(self, turn: int, seq: int, *, stay: bool = False) -> None:
        self.turn = turn
        self.seq = seq
        self.stay = stay
        self.attempt = 0
        self.done = False
        self.ended = False


def follow(http: Http, run_id: str, after: int) -> AsyncGenerator[Event | LiveEvent]:
    """Every event of a run after a number, and what is told live, until the run has ended."""
    position = StreamPosition(0, after)
    return follow_stream(http, position, lambda: _connection(http, run_id, position))


async def follow_stream(
    http: Http, position: StreamPosition, connect: Callable[[], AsyncGenerator[Event | LiveEvent]]
) -> AsyncGenerator[Event | LiveEvent]:
    """The events of one connection after another, until the position has ended."""
    since, tries = time.monotonic(), 0
    while True:
        started, before = time.monotonic(), (position.turn, position.seq)
        try:
            # Closed here and not when it is collected: a reader that leaves early must not keep its connection.
            async with aclosing(connect()) as events:
                async for event in events:
                    since = time.monotonic()
                    yield event
            if position.ended:
                return
            cause: Exception = StreamInterrupted("the stream ended too early")
        except (httpx2.TransportError, _Hole) as error:
            cause = error
        except ErrorResponse as answered:
            if answered.status not in _RETRYABLE:
                raise answered.error from None
            cause = answered
        moved = (position.turn, position.seq) != before
        lived = time.monotonic() - started
        if lived > http.retry_policy.longest_seconds:
            since = time.monotonic()
        tries = 1 if moved or lived > http.retry_policy.longest_seconds else tries + 1
        if moved and position.done and isinstance(cause, StreamInterrupted):
            # A whole stream of a chat ends with a turn. Only the next answer says that no other one has begun.
            continue
        if position.done and not position.stay and isinstance(cause, httpx2.ConnectError):
            # The end was seen, and nobody is there to say that the run was revived.
            return
        await http.pause(tries, since, cause)


async def read_events(
    http: Http, path: str, last_id: int | str, position: StreamPosition
) -> AsyncGenerator[Event | LiveEvent]:
    """The events of one connection as they come. The server's last word sets `position.ended`."""
    parser = SseParser()
    async with http.stream(path, last_id) as response:
        async for chunk in response.aiter_bytes():
            for frame in parser.feed(chunk):
                told = load_event(frame.data, http.url)
                if told["type"] == _COMPLETE:
                    position.ended = True
                    return
                yield event_from(told)


async def _connection(http: Http, run_id: str, position: StreamPosition) -> AsyncGenerator[Event | LiveEvent]:
    may_skip = True
    async with aclosing(read_events(http, f"{PREFIX}/runs/{run_id}/stream", position.seq, position)) as events:
        async for event in events:
            if isinstance(event, LiveEvent):
                if event.type == _TRUNCATED:
                    may_skip = True
                    yield event
                elif event.attempt >= position.attempt:
                    yield event
                continue
            if event.seq <= position.seq:
                continue
            # What retention took is skipped where a stream begins, or where the server says so.
            if not may_skip and event.seq != position.seq + 1:
                raise _Hole(f"event {event.seq} came after {position.seq}")
            may_skip = False
            position.seq = event.seq
            position.attempt = max(position.attempt, event.attempt)
            position.done = event.type == EventType.DONE
            yield event
    # A run that was retried goes on after its first `done`, so only the end of the stream makes it the last.
    position.ended = position.ended or position.done
