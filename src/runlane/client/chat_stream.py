"""Following a conversation across broken connections: every event once and in order, over all of its turns.

The place to go on from is the id of the last event that was handed out, which names the turn and its number there.
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
    """Every event of a conversation after a place, and what is told live, until no turn is open; or for ever."""
    position = _Position(after)
    since, tries = time.monotonic(), 0
    while True:
        started, before = time.monotonic(), position.place
        try:
            async with aclosing(_connection(http, session_id, position, stay=stay)) as events:
                async for event in events:
                    since = time.monotonic()
                    yield event
            if position.ended:
                return
            cause: Exception = StreamInterrupted("the stream ended while the conversation went on")
        except httpx2.TransportError as error:
            cause = error
        except ErrorResponse as answered:
            if answered.status not in RETRYABLE:
                raise answered.error from None
            cause = answered
        moved = position.place != before
        lived = time.monotonic() - started
        if moved or lived > http.retry_policy.longest_seconds:
            since, tries = time.monotonic(), 0
        if moved and position.done and isinstance(cause, StreamInterrupted):
            # A whole stream ends with a turn. Only the next answer says that no other one has begun meanwhile.
            continue
        if position.done and not stay and isinstance(cause, httpx2.ConnectError):
            return
        tries += 1
        await http.pause(tries, since, cause)


class _Position:
    """How far a reader has come. Kept across connections."""

    def __init__(self, after: str | None) -> None:
        self.place = place_of(after) if after else (0, 0)
        self.attempt = 0
        self.done = False
        self.ended = False

    @property
    def sent(self) -> str:
        return f"{self.place[0]}.{self.place[1]}" if self.place[0] else ""


def place_of(text: str) -> tuple[int, int]:
    """An event's id as turn and number."""
    turn, _, number = text.partition(".")
    if not (turn.isdecimal() and number.isdecimal()):
        raise InvalidRequest(f"{text!r} is no event of a chat. Their ids look like 2.17: turn and number.")
    return int(turn), int(number)


async def _connection(
    http: Http, session_id: str, position: _Position, *, stay: bool
) -> AsyncGenerator[Event | LiveEvent]:
    parser = SseParser()
    path = f"{PREFIX}/chat/{session_id}/stream{'?follow=true' if stay else ''}"
    async with http.stream(path, position.sent) as response:
        async for chunk in response.aiter_bytes():
            for frame in parser.feed(chunk):
                told = load_event(frame.data, http.url)
                if told["type"] == COMPLETE:
                    position.ended = True
                    return
                event = event_from(told)
                turn = int(event.data.get("chat_turn", 0))
                if isinstance(event, LiveEvent):
                    if turn != position.place[0] or event.attempt >= position.attempt:
                        yield event
                    continue
                place = (turn, event.seq)
                if place <= position.place:
                    continue
                position.attempt = event.attempt if turn != position.place[0] else max(position.attempt, event.attempt)
                position.place = place
                position.done = event.type == EventType.DONE
                yield event
