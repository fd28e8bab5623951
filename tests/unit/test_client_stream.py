"""The client's stream: whatever happens to connections, each number once, in order, to the end."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import aclosing

import pytest

from runlane import Client, Event, LiveEvent, RunNotFound, Unavailable, UnexpectedAnswer
from runlane.api.sse_encoding import KEEPALIVE, cut_frame, line_frame
from runlane.client import RetryPolicy
from runlane.errors import InvalidRequest, RunlaneError
from tests.wire_server import (
    RUN,
    Behaviour,
    Connection,
    Request,
    WireServer,
    answering,
    delta,
    finished_run,
    refusing,
    reset_connection,
    sending,
    stored_event,
    wire_server,
)

QUICK = RetryPolicy(first_seconds=0.001, longest_seconds=0.01, give_up_seconds=30)
HASTY = RetryPolicy(first_seconds=0.001, longest_seconds=0.01, give_up_seconds=0.1)


async def read(server: WireServer, after: int = 0, retry_policy: RetryPolicy = QUICK) -> list[Event | LiveEvent]:
    async with Client(server.url, "sk-rl-x", retry_policy=retry_policy) as client:
        return [event async for event in client.stream(RUN, after)]


def numbers(events: list[Event | LiveEvent]) -> list[int]:
    return [event.seq for event in events if isinstance(event, Event)]


async def test_a_whole_run() -> None:
    async with wire_server(finished_run(3)) as server:
        events = await read(server)
    assert events == [
        Event(RUN, 1, "log", 1, 1_700_000_000_000_001, {"message": "n1"}),
        Event(RUN, 2, "log", 1, 1_700_000_000_000_002, {"message": "n2"}),
        Event(RUN, 3, "done", 1, 1_700_000_000_000_003, {"status": "completed"}),
    ]
    assert server.requests[0].headers["authorization"] == "Bearer sk-rl-x"
    assert "last-event-id" not in server.requests[0].headers


async def test_it_continues_after_the_number_that_the_reader_has() -> None:
    async with wire_server(finished_run(5)) as server:
        assert numbers(await read(server, after=3)) == [4, 5]
        assert await read(server, after=5) == []
    assert [request.after for request in server.requests] == [3, 5]


async def test_a_cut_at_every_byte_loses_and_repeats_nothing() -> None:
    lines = finished_run(3)
    wire = b"".join(line_frame(RUN, line) for line in lines)
    cuts = [sending(wire[:size], cleanly=cleanly) for size in range(len(wire)) for cleanly in (True, False)]
    async with wire_server(lines) as server, Client(server.url, retry_policy=QUICK) as client:
        for cut in cuts:
            server.script = [cut]
            assert [event.seq async for event in client.stream(RUN)] == [1, 2, 3]


async def test_a_stream_survives_failures_of_servers_and_networks() -> None:
    async def crawl(connection: Connection, request: Request) -> None:
        await connection.begin()
        for byte in b"".join(server.frames(request.after))[:300]:
            await connection.send(bytes([byte]))
        connection.abort()

    lines = finished_run(40)
    script: list[Behaviour] = [
        reset_connection,
        refusing(503, "unavailable", {"retry-after": "0"}),
        sending(b"".join(line_frame(RUN, line) for line in lines[:5])),
        refusing(429, "rate_limited", {"retry-after": "0"}),
        refusing(500, "internal_error"),
        answering(b"<html>502</html>", 502),
        sending(KEEPALIVE, b": dropped: too slow\n\n"),
        # Delivered again, and older ones in between.
        sending(*(line_frame(RUN, lines[seq]) for seq in (0, 5, 5, 2, 6, 6, 7)), cleanly=False),
        crawl,
        reset_connection,
    ]
    async with wire_server(lines, *script) as server:
        assert numbers(await read(server)) == list(range(1, 41))
        assert server.script == []


async def test_a_hole_inside_a_connection_is_read_again() -> None:
    lines = finished_run(6)
    holed = sending(*(line_frame(RUN, lines[seq - 1]) for seq in (1, 2, 4, 5, 6)))
    async with wire_server(lines, holed) as server:
        assert numbers(await read(server)) == [1, 2, 3, 4, 5, 6]
        assert [request.after for request in server.requests] == [0, 2]


async def test_events_that_retention_deleted_are_not_waited_for() -> None:
    async with wire_server(finished_run(6)[3:]) as server:
        assert numbers(await read(server)) == [4, 5, 6]
        assert len(server.requests) == 1


async def test_a_gap_that_the_server_reports_is_passed_on_and_not_read_again() -> None:
    one, *_, five, six = (line_frame(RUN, line) for line in finished_run(6))
    async with wire_server(finished_run(6), sending(one, cut_frame(RUN, 5), five, six)) as server:
        events = await read(server)
        assert len(server.requests) == 1
    assert [(event.seq, event.type) for event in events] == [(1, "log"), (None, "truncated"), (5, "log"), (6, "done")]
    assert events[1].data == {"first_seq": 5}


@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
async def test_other_line_ends_and_data_on_many_lines(end: bytes) -> None:
    first = [
        b"id: 1",
        *(b"data: " + part.encode() for part in json.dumps({"type": "log", "seq": 1}, indent=1).split("\n")),
    ]
    last = [b"id: 2", b'data: {"type":"done","seq":2}']
    wire = end.join([*first, b"", *last, b"", b""])
    async with wire_server(finished_run(2), sending(wire)) as server:
        assert numbers(await read(server)) == [1, 2]
        assert len(server.requests) == 1


async def test_a_huge_event_and_every_script() -> None:
    text = "Zürich 東京 🎉 \u2028 " * 100_000
    lines = [stored_event(1, data=json.dumps({"message": text})), stored_event(2, "done", data="{}")]
    async with wire_server(lines) as server:
        (event, _) = await read(server)
    assert event.data == {"message": text}


async def test_live_events_have_no_number_and_leave_with_their_attempt() -> None:
    lines = [
        stored_event(1, "worker_picked_up", 1, "{}"),
        stored_event(2, "worker_lost", 1, "{}"),
        stored_event(3, "worker_picked_up", 2, "{}"),
        stored_event(4, "done", 2, "{}"),
    ]
    one, two, three, four = (line_frame(RUN, line) for line in lines)
    pieces = (one, delta(1, "a"), delta(1, "b"), two, three, delta(1, "of a dead attempt"), delta(2, "c"), four)
    async with wire_server(lines, sending(*pieces)) as server:
        events = await read(server)
    assert [(event.seq, event.attempt, event.data.get("note")) for event in events] == [
        (1, 1, None), (None, 1, "a"), (None, 1, "b"), (2, 1, None), (3, 2, None), (None, 2, "c"), (4, 2, None),
    ]  # fmt: skip


async def test_a_retried_run_continues_after_its_first_end() -> None:
    lines = [
        stored_event(1, "done", data="{}"),
        stored_event(2, "revived", data="{}"),
        stored_event(3, "done", data="{}"),
    ]
    one, rest = line_frame(RUN, lines[0]), [line_frame(RUN, line) for line in lines[1:]]
    async with wire_server(lines, sending(one, *rest), sending(one, cleanly=False)) as server:
        assert numbers(await read(server)) == [1, 2, 3]
        assert numbers(await read(server)) == [1, 2, 3]


async def test_an_end_that_was_seen_is_an_end_when_the_server_is_gone() -> None:
    async with wire_server(
        finished_run(2), sending(*(line_frame(RUN, line) for line in finished_run(2)), cleanly=False)
    ) as server:
        seen: list[int | None] = []
        async with Client(server.url, retry_policy=QUICK) as client:
            async for event in client.stream(RUN):
                seen.append(event.seq)
                if event.type == "done":
                    await server.stop()
    assert seen == [1, 2]


async def test_a_stream_survives_a_server_that_is_gone_for_a_while() -> None:
    lines = finished_run(4)
    seen: list[int | None] = []
    coming_back: asyncio.Task[None] | None = None
    async with (
        wire_server(lines, sending(line_frame(RUN, lines[0]))) as server,
        Client(server.url, retry_policy=QUICK) as client,
    ):
        async for event in client.stream(RUN):
            seen.append(event.seq)
            if event.seq == 1:
                await server.stop()
                coming_back = asyncio.create_task(server.start())
    assert coming_back is not None
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "run_not_found", RunNotFound),
        (400, "impossible_event_id", InvalidRequest),
        (401, "unauthorized", RunlaneError),
        (403, "forbidden", RunlaneError),
    ],
)
async def test_a_refusal_is_final(status: int, code: str, kind: type[Exception]) -> None:
    async with wire_server(finished_run(2), refusing(status, code)) as server:
        with pytest.raises(kind, match="no"):
            await read(server)
        assert len(server.requests) == 1


async def test_a_stream_ends_with_an_error_when_its_retries_are_used_up() -> None:
    async with wire_server(finished_run(2)) as server:
        pass
    with pytest.raises(Unavailable, match="did not respond"):
        await read(server, retry_policy=HASTY)


async def test_retries_end_with_a_server_that_only_refuses() -> None:
    async with wire_server(finished_run(2), *[refusing(503, "unavailable", {"retry-after": "0"})] * 1000) as server:
        with pytest.raises(Unavailable, match="no"):
            await read(server, retry_policy=HASTY)


async def test_a_retry_after_longer_than_the_timeout_is_not_waited_for() -> None:
    async with wire_server(finished_run(2), refusing(503, "unavailable", {"retry-after": "3600"})) as server:
        with pytest.raises(Unavailable):
            await read(server)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "behaviour", [answering(b"<html>", 200), sending(b"data: {not json\n\n"), sending(b"data: 1\n\n")]
)
async def test_an_answer_that_is_not_a_stream_is_reported(behaviour: Behaviour) -> None:
    async with wire_server(finished_run(2), behaviour) as server:
        with pytest.raises(UnexpectedAnswer):
            await read(server)


async def test_a_reader_that_leaves_early_leaves_no_connection() -> None:
    gone = asyncio.Event()

    async def endless(connection: Connection, request: Request) -> None:
        await connection.begin()
        try:
            while True:
                await connection.send(line_frame(RUN, stored_event(1)) + KEEPALIVE)
                await asyncio.sleep(0)
        except ConnectionError:
            gone.set()

    async with wire_server(finished_run(2), endless) as server, Client(server.url) as client:
        async with aclosing(client.stream(RUN)) as stream:
            assert (await anext(stream)).seq == 1
        await asyncio.wait_for(gone.wait(), 30)


@pytest.mark.parametrize("seed", range(20))
async def test_random_faults(seed: int) -> None:
    chance = random.Random(seed)
    lines = finished_run(60)

    async def fault(connection: Connection, request: Request) -> None:
        frames = server.frames(request.after)
        if chance.random() < 0.3:
            frames = [frame for frame in frames for _ in range(chance.choice([1, 1, 2]))]
        if chance.random() < 0.3:
            frames = [frame.replace(b"\n", b"\r\n") for frame in frames]
        if chance.random() < 0.5:
            frames = [piece for frame in frames for piece in (frame, KEEPALIVE, delta(1, "x"))]
        wire = b"".join(frames)
        wire = wire[: chance.randrange(min(len(wire), 900) + 1)]
        await connection.begin()
        while wire:
            size = chance.randrange(1, 200)
            await connection.send(wire[:size])
            wire = wire[size:]
        if chance.random() < 0.5:
            await connection.end()
        else:
            connection.abort()

    faults = [chance.choice([fault, fault, fault, reset_connection, refusing(503, "unavailable")]) for _ in range(25)]
    async with wire_server(lines, *faults) as server:
        assert numbers(await read(server)) == list(range(1, 61))
