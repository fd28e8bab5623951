"""Follow a conversation across broken connections: yield every event of all its turns once and in order.

A reader resumes after the id of the last event that it has yielded. The id contains the turn and the event's number.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from runlane.client.http import PREFIX, Http
from runlane.client.stream import StreamPosition, follow_stream, read_events
from runlane.domain.events import Event, EventType
from runlane.domain.views import LiveEvent
from runlane.errors import InvalidRequest


def follow_chat(http: Http, session_id: str, after: str | None, *, stay: bool) -> AsyncGenerator[Event | LiveEvent]:
    """Yield every event of a conversation after an id, and live deltas, until no turn is open; with `stay`, forever."""
    position = StreamPosition(*(parse_event_id(after) if after else (0, 0)), stay=stay)
    return follow_stream(http, position, lambda: _connection(http, session_id, position))


def parse_event_id(text: str) -> tuple[int, int]:
    """Parse the id of an event. Return its turn and its number."""
    turn, _, number = text.partition(".")
    if not (turn.isdecimal() and number.isdecimal()):
        raise InvalidRequest(f"{text!r} is not an event id of a chat. Use TURN.NUMBER, such as 2.17.")
    return int(turn), int(number)


async def _connection(http: Http, session_id: str, position: StreamPosition) -> AsyncGenerator[Event | LiveEvent]:
    path = f"{PREFIX}/chat/{session_id}/stream{'?follow=true' if position.stay else ''}"
    last_id = f"{position.turn}.{position.seq}" if position.turn else ""
    async with aclosing(read_events(http, path, last_id, position)) as events:
        async for event in events:
            turn = int(event.data.get("chat_turn", 0))
            if isinstance(event, LiveEvent):
                if turn != position.turn or event.attempt >= position.attempt:
                    yield event
                continue
            if (turn, event.seq) <= (position.turn, position.seq):
                continue
            position.attempt = event.attempt if turn != position.turn else max(position.attempt, event.attempt)
            position.turn, position.seq = turn, event.seq
            position.done = event.type == EventType.DONE
            yield event
