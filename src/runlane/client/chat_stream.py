"""Follow a conversation across broken connections: every event once and in order, over all its turns.

A reader resumes after the id of the last event it has yielded, which names the turn and the number within it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx2

from runlane.client.http import PREFIX, ErrorResponse, Http
from runlane.client.sse import SseParser
from runlane.client.stream import COMPLETE, RETRYABLE, StreamInterrupted
from runlane.client.wire import event_from, load_event
from runlane.domain.events import Event, EventType
from runlane.domain.views import LiveEvent
from runlane.errors import InvalidRequest


async def follow_chat(
    http: Http, session_id: str, after: str | None, *, stay: bool
) -> AsyncGenerator[Event | LiveEvent]:
    """Yield every event of a conversation after an id, and live deltas, until no turn is open, or forever."""
    position = _Position(after)
    since, tries = time.monotonic(), 0
    while True:
        started, before = time.monotonic(), position.event_id
        try:
            async with aclosing(_connection(http, session_id, position, stay=stay)) as events:
                async for event in events:
                    since = time.monotonic()
                    yield event
            if position.ended:
                return
            cause: Exception = StreamInterrupted("the stream ended before the conversation did")
        except httpx2.TransportError as error:
            cause = error
        except ErrorResponse as answered:
            if answered.status not in RETRYABLE:
                raise answered.error from None
            cause = answered
        moved = position.event_id != before
        lived = time.monotonic() - started
        if moved or lived > http.retry_policy.longest_seconds:
            since, tries = time.monotonic(), 0
        if moved and position.done and isinstance(cause, StreamInterrupted):
            # A stream may end with a turn. Only the next response shows that no other turn has begun meanwhile.
            continue
        if position.done and not stay and isinstance(cause, httpx2.ConnectError):
            return
        tries += 1
        await http.pause(tries, since, cause)


class _Position:
    """A reader's position, kept across connections."""

    def __init__(self, after: str | None) -> None:
        self.event_id = parse_event_id(after) if after else (0, 0)
        self.attempt = 0
        self.done = False
        self.ended = False

    @property
    def sent(self) -> str:
        return f"{self.event_id[0]}.{self.event_id[1]}" if self.event_id[0] else ""


def parse_event_id(text: str) -> tuple[int, int]:
    """Parse an event's id to turn and number."""
    turn, _, number = text.partition(".")
    if not (turn.isdecimal() and number.isdecimal()):
        raise InvalidRequest(f"{text!r} is not an event id of a chat. Use TURN.NUMBER, such as 2.17.")
    return int(turn), int(number)


async def _connection(
    http: Http, session_id: str, position: _Position, *, stay: bool
) -> AsyncGenerator[Event | LiveEvent]:
    parser = SseParser()
    path = f"{PREFIX}/chat/{session_id}/stream{'?follow=true' if stay else ''}"
    async with http.stream(path, position.sent) as response:
        async for chunk in response.aiter_bytes():
            for frame in parser.feed(chunk):
                event_body = load_event(frame.data, http.url)
                if event_body["type"] == COMPLETE:
                    position.ended = True
                    return
                event = event_from(event_body)
                turn = int(event.data.get("chat_turn", 0))
                if isinstance(event, LiveEvent):
                    if turn != position.event_id[0] or event.attempt >= position.attempt:
                        yield event
                    continue
                event_id = (turn, event.seq)
                if event_id <= position.event_id:
                    continue
                position.attempt = (
                    event.attempt if turn != position.event_id[0] else max(position.attempt, event.attempt)
                )
                position.event_id = event_id
                position.done = event.type == EventType.DONE
                yield event
