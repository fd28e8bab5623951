"""The client's stream of a conversation: whatever happens to connections, each event once, over all turns."""

from __future__ import annotations

import pytest

from runlane import Client, Event, LiveEvent, UnknownSession
from runlane.api.chat_stream import ChatCursor, mark, mark_json
from runlane.api.sse_encoding import delta_frame, line_frame
from runlane.client import RetryPolicy
from runlane.domain.events import Delta
from runlane.errors import InvalidRequest
from tests.wire_server import (
    Behaviour,
    Connection,
    Request,
    WireServer,
    finished_run,
    refusing,
    reset_connection,
    stored_event,
    wire_server,
)

SESSION = "sess_1"
QUICK = RetryPolicy(first_seconds=0.001, longest_seconds=0.01, give_up_seconds=30)
COMPLETE = b'data: {"type":"stream_complete"}\n\n'
TURNS = (1, 2, 3)
EVENTS = 4
ALL = [(turn, seq) for turn in TURNS for seq in range(1, EVENTS + 1)]


def frames(after: ChatCursor) -> bytes:
    """Return what a server sends to a reader that has come so far."""
    return b"".join(
        mark(line_frame(f"run_{turn}", item), turn)
        for turn in TURNS
        for item in finished_run(EVENTS)
        if (turn, item.seq) > after
    )


def cut_after(size: int | None) -> Behaviour:
    """Send this number of bytes and break; with None send everything and end."""

    async def behave(connection: Connection, request: Request) -> None:
        given = request.headers.get("last-event-id")
        await connection.begin()
        content = frames(ChatCursor.of(given) if given else ChatCursor())
        if size is None:
            await connection.send(content or COMPLETE)
            await connection.end()
        else:
            await connection.send(content[:size])
            connection.abort()

    return behave


async def read(server: WireServer, after: str | None = None) -> list[Event | LiveEvent]:
    async with Client(server.url, "sk-rl-x", retry_policy=QUICK) as client:
        return [event async for event in client.chat_stream(SESSION, after)]


def places(events: list[Event | LiveEvent]) -> list[tuple[int, int]]:
    return [(event.data["chat_turn"], event.seq) for event in events if isinstance(event, Event)]


async def test_a_whole_conversation() -> None:
    async with wire_server((), cut_after(None), cut_after(None)) as server:
        events = await read(server)
    assert places(events) == ALL
    assert [event.run_id for event in events[::EVENTS]] == ["run_1", "run_2", "run_3"]


@pytest.mark.parametrize("size", [0, 1, 7, 60, 150, 333, 500, 777, 1000])
async def test_a_connection_that_breaks_anywhere_loses_and_repeats_nothing(size: int) -> None:
    breaks = [cut_after(size), reset_connection, cut_after(size + 200), refusing(503, "unavailable"), cut_after(size)]
    async with wire_server((), *breaks, cut_after(None), cut_after(None)) as server:
        assert places(await read(server)) == ALL


async def test_a_reader_begins_at_its_cursor() -> None:
    async with wire_server((), cut_after(None), cut_after(None)) as server:
        assert places(await read(server, "2.3")) == ALL[ALL.index((2, 4)) :]
    async with Client("http://127.0.0.1:9") as client:
        with pytest.raises(InvalidRequest, match=r"2\.17"):
            [event async for event in client.chat_stream(SESSION, "7")]


async def test_a_missing_session_is_an_error() -> None:
    async with wire_server((), refusing(404, "session_not_found")) as server:
        with pytest.raises(UnknownSession):
            await read(server)


def test_frames_are_marked_with_their_turn_and_nothing_else_is_touched() -> None:
    event = stored_event(3, data='{"text":"\\nid: 9\\ndata: {"}')
    assert mark(line_frame("run_1", event), 2) == (
        b'id: 2.3\ndata: {"chat_turn":2,"type":"log","seq":3,"run_id":"run_1","attempt":1,'
        b'"at":"2023-11-14T22:13:20.000003Z","text":"\\nid: 9\\ndata: {"}\n\n'
    )
    live = mark(delta_frame(Delta("run_1", 1, "text", '{"text":"id: 1"}')), 2)
    assert live == b'data: {"chat_turn":2,"type":"text","run_id":"run_1","attempt":1,"text":"id: 1"}\n\n'
    assert mark(b": keepalive\n\n", 2) == b": keepalive\n\n"
    assert mark_json('{"type":"log"}', 2) == '{"chat_turn":2,"type":"log"}'
