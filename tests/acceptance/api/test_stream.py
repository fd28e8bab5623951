"""Streams over HTTP: replay, resume, live, the end, and readers that hop between servers while workers are killed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2

from runlane.settings import Settings
from tests.acceptance.api.serving import API, Api, copy_of, frames, process, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_runs import problem_of
from tests.harness import eventually


async def test_a_stream_replays_resumes_and_ends(api: Api) -> None:
    run = await api.run("greet", input={"lines": 4})
    path = f"/runs/{run['run_id']}/stream"
    whole = await api.get(path)
    assert whole.headers["content-type"].startswith("text/event-stream")
    assert whole.headers["cache-control"] == "no-cache"
    events = frames(whole.text)
    assert [event["_id"] for event in events] == list(range(1, run["last_seq"] + 1))
    assert events[-1]["type"] == "done"
    assert [event["message"] for event in events if event["type"] == "log"] == [f"line {n}" for n in (1, 2, 3, 4)]
    rest = await api.get(path, headers={"Last-Event-ID": "3"})
    assert frames(rest.text) == events[3:]
    assert whole.text.endswith(rest.text)
    assert frames((await api.get(path, params={"after": 3})).text) == events[3:]
    over = await api.get(path, headers={"Last-Event-ID": str(run["last_seq"])})
    assert over.text == 'data: {"type":"stream_complete"}\n\n'
    stored = (await api.get(f"/runs/{run['run_id']}/events")).json()
    assert [{**event, "_id": event["seq"]} for event in stored["events"]] == events
    part = (await api.get(f"/runs/{run['run_id']}/events", params={"after": 2, "limit": 3})).json()
    assert ([event["seq"] for event in part["events"]], part["next_after"]) == ([3, 4, 5], 5)


async def test_impossible_numbers_are_refused_before_the_stream_begins(api: Api) -> None:
    run = await api.run("greet")
    path = f"/runs/{run['run_id']}/stream"
    for number in (str(run["last_seq"] + 1), "99999999999999999999", "-1", "abc", "1-0", "1.5"):
        answer = await api.get(path, headers={"Last-Event-ID": number})
        problem_of(answer, 400, "impossible_event_id")
    problem_of(await api.get("/runs/run_nothing/stream", headers={"Last-Event-ID": "abc"}), 404, "run_not_found")


async def test_a_live_stream_brings_events_and_progress_as_they_happen(api: Api) -> None:
    run = await api.run("wait", wait=False)
    path = f"{API}/runs/{run['run_id']}/stream"
    seen = ""
    async with api.client.stream("GET", path) as answer:
        async for piece in answer.aiter_text():
            seen += piece
            types = [event["type"] for event in frames(seen[: seen.rfind("\n\n") + 2])]
            if "worker_picked_up" in types and "cancel_requested" not in types:
                await api.post(f"/runs/{run['run_id']}/cancel")
    events = [event for event in frames(seen) if "_id" in event]
    assert [event["_id"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events][-2:] == ["cancel_requested", "done"]
    await eventually(lambda: api.parts.tail.followers == 0, "no follower")


async def test_a_reader_that_leaves_is_forgotten(api: Api) -> None:
    run = await api.run("wait", wait=False)
    async with api.client.stream("GET", f"{API}/runs/{run['run_id']}/stream") as answer:
        await anext(answer.aiter_text())
        assert api.parts.tail.followers == 1
    await eventually(lambda: api.parts.tail.followers == 0, "no follower")


async def test_an_idle_stream_keeps_nothing_of_its_request(idle_api: Api) -> None:
    run = await idle_api.run("greet", wait=False)
    gc.collect()
    gc.disable()
    try:
        async with idle_api.client.stream("GET", f"{API}/runs/{run['run_id']}/stream") as answer:
            async for _ in answer.aiter_lines():
                break
            # The server's own scope lasts as long as the stream. The copy that the request has got must not.
            objects: list[Any] = gc.get_objects()
            kept: list[str] = [item["path"] for item in objects if type(item) is dict and "runlane.streams" in item]
            assert kept == []
    finally:
        gc.enable()


async def test_a_stopping_server_ends_streams_without_a_done_event(settings: Settings) -> None:
    async with serving(copy_of(shop, settings)) as api:
        run = await api.run("wait", wait=False)
        path = f"{API}/runs/{run['run_id']}/stream"
        async with api.client.stream("GET", path, headers={"Last-Event-ID": "1"}) as answer:
            await eventually(lambda: api.parts.tail.followers == 1, "a follower")
            api.parts.end_streams()
            assert "".join([piece async for piece in answer.aiter_text()]) == ""
        ready = await api.client.get("/ready")
        assert (ready.status_code, ready.json()["problems"]) == (503, ["stopping"])


async def test_a_reader_that_sends_without_end_is_not_kept(idle_api: Api) -> None:
    """What it sends is thrown away, and only so much of it is taken."""
    api = idle_api
    run_id = (await api.run("greet", wait=False))["run_id"]
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request = (
        f"GET {API}/runs/{run_id}/stream HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {await api.key()}\r\n"
        "transfer-encoding: chunked\r\n\r\n"
    )
    writer.write(request.encode())
    await asyncio.wait_for(reader.readuntil(b'"type":"queued"'), 30)
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    sent = 0
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(60):
            while api.parts.tail.followers:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
    assert sent < 4 * api.parts.app.settings.api_max_body_bytes
    await eventually(lambda: api.parts.tail.followers == 0, "the end of the stream")
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _follow(run_id: str, urls: list[str], key: str, seed: int) -> list[dict[str, Any]]:
    """Read a stream to its end over many connections, each to another server, each cut at some moment."""
    dice = random.Random(seed)
    events: list[dict[str, Any]] = []
    in_vain = 0
    headers = {"Authorization": f"Bearer {key}"}
    while not events or events[-1]["type"] != "done":
        base = dice.choice(urls)
        resume = headers | ({"Last-Event-ID": str(events[-1]["_id"])} if events else {})
        # Longer after a connection without events: on a busy machine the first of them may take that long.
        patience = dice.uniform(0.1, 0.6) * (1 + in_vain)
        text = ""
        try:
            async with (
                httpx2.AsyncClient(base_url=base, timeout=30, trust_env=False) as client,
                client.stream("GET", f"{API}/runs/{run_id}/stream", headers=resume) as answer,
                asyncio.timeout(patience),
            ):
                if answer.status_code == 503:
                    continue
                assert answer.status_code == 200, await answer.aread()
                async for piece in answer.aiter_text():
                    text += piece
        except (TimeoutError, httpx2.TransportError):
            pass
        received = [event for event in frames(text[: text.rfind("\n\n") + 2]) if "_id" in event]
        in_vain = 0 if received else in_vain + 1
        events += received
    return events


async def test_readers_hop_between_servers_while_workers_are_killed(settings: Settings) -> None:
    module = "tests.acceptance.api.shop:app"
    with ExitStack() as stack:
        worker = stack.enter_context(process("worker", module, settings=settings))
        async with serving(copy_of(shop, settings)) as first, serving(copy_of(shop, settings)) as second:
            worker.wait_for("worker_online")
            key = await first.key()
            runs = [
                (await first.run("steady", wait=False, input={"lines": 100, "pause": 0.1}))["run_id"] for _ in range(5)
            ]
            readers = [
                asyncio.create_task(_follow(run_id, [first.url, second.url], key, seed))
                for run_id in runs
                for seed in (1, 2)
            ]
            await eventually(lambda: _lines(first, runs[0], 8), "some lines")
            worker.signal(signal.SIGKILL)
            other = stack.enter_context(process("worker", module, settings=settings))
            other.wait_for("worker_online")
            async with asyncio.timeout(120):
                seen = await asyncio.gather(*readers)
            lost = 0
            for position, events in enumerate(seen):
                run_id = runs[position // 2]
                stored = (await second.get(f"/runs/{run_id}/events", params={"limit": 1000})).json()["events"]
                assert events == [{**event, "_id": event["seq"]} for event in stored]
                assert [event["seq"] for event in stored] == list(range(1, len(stored) + 1))
                lost += sum(event["type"] == "worker_lost" for event in stored)
                run = (await first.get(f"/runs/{run_id}")).json()
                assert (run["status"], run["result"]) == ("completed", 100)
            assert lost > 0


async def _lines(api: Api, run_id: str, count: int) -> bool:
    # On a busy machine the database may be too slow for a request, which is then answered with 503.
    response = await api.get(f"/runs/{run_id}/events")
    return response.status_code == 200 and response.json()["last_seq"] >= count


async def test_serve_with_a_worker_ends_streams_first_and_drains(settings: Settings, tmp_path: Path) -> None:
    relief = tmp_path / "relief"
    module = "tests.acceptance.api.shop:app"
    with process("serve", module, "--port", "0", "--worker", settings=settings) as server:
        url = server.wait_for("serving")["url"]
        async with httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            body = {"input": {"until": str(relief)}}
            run_id = (await client.post(f"{API}/tasks/guard/run", json=body)).json()["run_id"]
            async with client.stream("GET", f"{API}/runs/{run_id}/stream") as answer:
                text, signalled = "", False
                async for piece in answer.aiter_text():
                    text += piece
                    # Only once: a second signal makes the worker stop without waiting for its runs.
                    if not signalled and '"line 3"' in text:
                        signalled = True
                        server.signal(signal.SIGTERM)
            types = [event["type"] for event in frames(text)]
            assert "done" not in types
            assert "stream_complete" not in types
        relief.touch()
        assert server.ended() == 0
    async with serving(copy_of(shop, settings)) as api:
        run = (await api.get(f"/runs/{run_id}")).json()
        assert (run["status"], run["attempt"]) == ("completed", 1)


async def test_last_event_id_wins_over_after(api: Api) -> None:
    run = await api.run("greet")
    path = f"{API}/runs/{run['run_id']}/stream"
    answer = await api.client.get(path, params={"after": 1}, headers={"Last-Event-ID": "3"})
    assert next(event["_id"] for event in frames(answer.text)) == 4
