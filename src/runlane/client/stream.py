"""Follow a run across broken connections, so that a reader receives every number once and in order.

A reader resumes after the last number that it has yielded, not after a number that it has only received. So a truncated
frame, a repeated number or a gap costs at most a reconnect: the server reads the missing events from the database.
Deltas are yielded as they arrive, except deltas of an attempt that is over.
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

# The last frame for a reader that reconnects after the end.
_COMPLETE = "stream_complete"
# The frame for a permanent gap: retention deleted the events in between.
_TRUNCATED = "truncated"
# Statuses after which a stream reconnects: too many requests, or a server error.
_RETRYABLE = frozenset({429, 500, 502, 503, 504})


class _Gap(Exception):
    """A number was skipped within one connection, which indicates a damaged stream."""


class StreamInterrupted(Exception):
    """The stream ended although the run or the conversation has not ended."""


class StreamPosition:
    """A reader's position: the turn, which is 0 for the stream of a run, and the number.

    It is kept across connections.
    """

    def __init__(self, turn: int, seq: int, *, stay: bool = False) -> None:
        self.turn = turn
        self.seq = seq
        self.stay = stay
        self.attempt = 0
        self.done = False
        self.ended = False


def follow(http: Http, run_id: str, after: int) -> AsyncGenerator[Event | LiveEvent]:
    """Yield every event of a run after a number, and live deltas, until the run has ended."""
    position = StreamPosition(0, after)
    return follow_stream(http, position, lambda: _connection(http, run_id, position))


async def follow_stream(
    http: Http, position: StreamPosition, connect: Callable[[], AsyncGenerator[Event | LiveEvent]]
) -> AsyncGenerator[Event | LiveEvent]:
    """Yield the events of successive connections until the end of the stream."""
    since, tries = time.monotonic(), 0
    while True:
        started, before = time.monotonic(), (position.turn, position.seq)
        try:
            # The events are closed here, not by the garbage collector, so that a reader that stops early frees its
            # connection.
            async with aclosing(connect()) as events:
                async for event in events:
                    since = time.monotonic()
                    yield event
            if position.ended:
                return
            cause: Exception = StreamInterrupted("the stream ended too early")
        except (httpx2.TransportError, _Gap) as error:
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
            # The stream of a chat may end with a turn. Only the next response shows whether another turn has begun.
            continue
        if position.done and not position.stay and isinstance(cause, httpx2.ConnectError):
            # The reader has received the end, and no server responds that could report a retry of the run.
            return
        await http.pause(tries, since, cause)


async def read_events(
    http: Http, path: str, last_id: int | str, position: StreamPosition
) -> AsyncGenerator[Event | LiveEvent]:
    """Yield the events of one connection. The server's last frame sets `position.ended`."""
    parser = SseParser()
    async with http.stream(path, last_id) as response:
        async for chunk in response.aiter_bytes():
            for frame in parser.feed(chunk):
                event_body = load_event(frame.data, http.url)
                if event_body["type"] == _COMPLETE:
                    position.ended = True
                    return
                yield event_from(event_body)


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
            # Deleted events are skipped at the beginning of a stream and after a `truncated` frame.
            if not may_skip and event.seq != position.seq + 1:
                raise _Gap(f"event {event.seq} came after {position.seq}")
            may_skip = False
            position.seq = event.seq
            position.attempt = max(position.attempt, event.attempt)
            position.done = event.type == EventType.DONE
            yield event
    # A retried run continues after its first `done`, so only the end of the stream confirms that this was the last
    # `done`.
    position.ended = position.ended or position.done
