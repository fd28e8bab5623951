"""The client's calls: repeated while the server is away, done once, and refused with the message of the server."""

from __future__ import annotations

import json
import math

import pytest

from runlane import (
    Accepted,
    Client,
    Conflict,
    IdempotencyConflict,
    InputTooLarge,
    InvalidInput,
    InvalidRequest,
    InvalidSettings,
    RateLimited,
    RunlaneError,
    Status,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    UnknownTask,
)
from runlane.client import RetryPolicy
from tests.wire_server import answering, refusing, reset_connection, wire_server

QUICK = RetryPolicy(first_seconds=0.001, longest_seconds=0.01, give_up_seconds=30)
ACCEPTED = {"run_id": "run_1", "status": "queued", "lane": "default", "replayed": False}


async def test_a_run_is_sent_again_with_the_same_key_until_there_is_an_answer() -> None:
    script = [
        reset_connection,
        refusing(503, "unavailable"),
        answering(b"bad gateway", 502),
        reset_connection,
        answering(ACCEPTED, 202),
    ]
    async with wire_server((), *script) as server, Client(server.url, retry_policy=QUICK) as client:
        assert await client.enqueue("a/b", {"n": 1}) == Accepted("run_1", Status.QUEUED, "default")
        server.script = [answering(ACCEPTED, 202)]
        await client.enqueue("a/b")
    assert {(request.method, request.path) for request in server.requests} == {("POST", "/api/v2/tasks/a%2Fb/run")}
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert len(set(keys[:5])) == 1
    assert keys[5] != keys[0]
    assert json.loads(server.requests[0].body) == {"input": {"n": 1}}


async def test_the_callers_own_key_and_options_are_sent() -> None:
    async with wire_server((), answering(ACCEPTED, 202)) as server, Client(server.url) as client:
        await client.enqueue("job", priority=5, ordering_key="k", delay_seconds=1.5, hold=True, idempotency_key="mine")
    (request,) = server.requests
    assert request.headers["idempotency-key"] == "mine"
    assert json.loads(request.body) == {
        "input": {}, "priority": 5, "ordering_key": "k", "delay_seconds": 1.5, "hold": True,
    }  # fmt: skip


async def test_a_request_that_is_under_way_is_waited_for() -> None:
    script = [
        reset_connection,
        refusing(409, "idempotency_under_way", {"retry-after": "0"}),
        answering({"status": "queued"}, 202),
    ]
    async with wire_server((), *script) as server, Client(server.url, retry_policy=QUICK) as client:
        assert await client.retry("run_1") is Status.QUEUED


async def test_a_cancelled_run_that_still_runs_is_running() -> None:
    async with wire_server((), answering({"status": "cancellation_requested"})) as server, Client(server.url) as client:
        assert await client.cancel("run_1") is Status.RUNNING


async def test_many_runs_go_in_batches_that_can_be_repeated() -> None:
    def batch(count: int) -> dict[str, object]:
        return {"runs": [{**ACCEPTED, "run_id": f"run_{number}"} for number in range(count)]}

    script = [answering(batch(1000), 202), reset_connection, answering(batch(500), 202)]
    async with wire_server((), *script) as server, Client(server.url, retry_policy=QUICK) as client:
        assert len(await client.enqueue_many([("job", {"n": 1})] * 1500, idempotency_key="k")) == 1500
    assert [len(json.loads(request.body)["runs"]) for request in server.requests] == [1000, 500, 500]
    assert [request.headers["idempotency-key"] for request in server.requests] == ["k:0", "k:1000", "k:1000"]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "unknown_task", UnknownTask),
        (422, "invalid_input", InvalidInput),
        (422, "invalid_request", InvalidRequest),
        (400, "invalid_json", InvalidRequest),
        (409, "idempotency_conflict", IdempotencyConflict),
        (409, "something_new", Conflict),
        (413, "input_too_large", InputTooLarge),
        (413, "too_large", InputTooLarge),
        (401, "unauthorized", Unauthorized),
        (429, "rate_limited", RateLimited),
        (500, "internal_error", RunlaneError),
    ],
)
async def test_a_refusal_becomes_its_error(status: int, code: str, kind: type[RunlaneError]) -> None:
    refusal = refusing(status, code, {"retry-after": "7"})
    async with wire_server((), refusal) as server, Client(server.url, retry_policy=QUICK) as client:
        with pytest.raises(kind, match=r"^no$") as caught:
            await client.enqueue("job")
    assert type(caught.value) is kind
    assert caught.value.code == code
    assert len(server.requests) == 1
    if isinstance(caught.value, RateLimited):
        assert caught.value.retry_after_seconds == 7


@pytest.mark.parametrize("status", [200, 404])
async def test_another_server_is_not_taken_for_ours(status: int) -> None:
    async with wire_server((), answering(b"<html>hello", status)) as server, Client(server.url) as client:
        with pytest.raises(UnexpectedAnswer, match="hello"):
            await client.get("run_1")


async def test_pages_are_read_as_they_are_taken() -> None:
    run = {
        "run_id": "run_9", "target": "job", "lane": "default", "tenant": "default", "status": "queued", "priority": 0,
        "attempt": 0, "failures": 0, "losses": 0, "max_attempts": 3, "ordering_key": None,
        "accepted_at": "2026-01-31T12:00:00.000001Z", "due_at": None, "started_at": None,
        "claimed_at": None, "ended_at": None,
        "cancel_requested_at": None, "worker_id": None, "first_seq": 1, "last_seq": 1, "progress": None,
        "progress_note": None,
    }  # fmt: skip
    pages = [answering({"runs": [run, run], "next_cursor": "c 1"}), answering({"runs": [run], "next_cursor": None})]
    async with wire_server((), *pages) as server, Client(server.url) as client:
        runs = [found async for found in client.list(status=Status.QUEUED, page=2)]
    assert [found.accepted_at_us for found in runs] == [1_769_860_800_000_001] * 3
    assert [request.path for request in server.requests] == [
        "/api/v2/runs?status=queued&limit=2",
        "/api/v2/runs?status=queued&limit=2&cursor=c+1",
    ]


async def test_a_poller_of_logs_ends() -> None:
    def page(since: int, count: int, end: int | None, first: int = 0) -> dict[str, object]:
        lines = [{"index": since + n, "event": "log", "message": "m", "at": "t", "attempt": 1} for n in range(count)]
        return {
            "logs": lines, "next_index": since + count, "first_index": first, "status": "running" if end is None else
            "completed", "expected_log_count": end, "truncated": first > since, "runner_id": None,
        }  # fmt: skip

    script = [answering(page(0, 2, None)), answering(page(2, 0, None)), answering(page(2, 1, 3))]
    async with wire_server((), *script) as server, Client(server.url) as client:
        assert [line.index async for line in client.log_lines("run_1", follow=True)] == [0, 1, 2]
        server.script = [answering(page(0, 2, None)), answering(page(2, 0, None))]
        assert [line.index async for line in client.log_lines("run_1")] == [0, 1]


async def test_health_is_returned_even_when_it_is_bad() -> None:
    async with wire_server((), answering({"problems": ["x"]}, 503)) as server, Client(server.url) as client:
        health = await client.health()
    assert (health.ready, health.parts) == (False, {"problems": ["x"]})
    with pytest.raises(Unavailable, match="did not respond"):
        async with Client(server.url) as client:
            await client.health()


async def test_input_that_cannot_be_sent_unchanged_is_refused() -> None:
    async with wire_server() as server, Client(server.url) as client:
        with pytest.raises(InvalidInput, match="nan"):
            await client.enqueue("job", {"x": [math.nan]})
        with pytest.raises(InvalidInput, match="not JSON"):
            await client.enqueue("job", {"x": object()})
        with pytest.raises(InvalidInput, match="idempotency key"):
            await client.enqueue("job", idempotency_key="mit Umläuten")
        with pytest.raises(InvalidRequest, match="empty"):
            await client.get("")
    assert server.requests == []


@pytest.mark.parametrize("url", ["localhost:8765", "ftp://x", "http://", "https://me:secret@x"])
def test_a_url_that_cannot_be(url: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        Client(url)
    assert "secret" not in str(caught.value)


def test_a_url_with_the_apis_path_is_understood() -> None:
    assert Client("http://x:1/api/v2/").url == "http://x:1"


def test_waits_grow_to_a_limit_and_obey_the_server() -> None:
    retry_policy = RetryPolicy(first_seconds=1, longest_seconds=8)
    assert [retry_policy.wait_seconds(tries, 0.0) for tries in (0, 1, 2, 3, 4, 9, 99999)] == [0.5, 0.5, 1, 2, 4, 4, 4]
    assert retry_policy.wait_seconds(1, 0.999) < 1
    assert retry_policy.wait_seconds(1, 0.0, requested_seconds=30) == 30
