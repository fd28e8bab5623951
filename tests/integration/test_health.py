"""The health endpoint, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from typing import Any

import pytest

from runlane import Context, Settings
from runlane.errors import ConfigurationError
from runlane.store.queue.lanes import LaneChange, set_lane
from runlane.version import VERSION
from runlane.worker.health import MAX_CONNECTIONS
from tests.harness import eventually, settings_for
from tests.integration.process import Process
from tests.server_process import free_port


@pytest.fixture
def settings(sqlite_url: str) -> Settings:
    return settings_for(sqlite_url, worker_health_port=free_port(), heartbeat_seconds=0.1, timer_seconds=0.05)


async def ask(settings: Settings, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", settings.worker_health_port)
    writer.write(request)
    await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answer


async def get(settings: Settings, path: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
    answer = await ask(settings, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    assert f"content-length: {len(body)}".encode() in head or method == "HEAD"
    return int(head.split()[1]), json.loads(body) if body else {}


async def test_a_worker_reports_its_health(process: Process, settings: Settings) -> None:
    gate = asyncio.Event()

    @process.app.task("job")
    async def job(ctx: Context) -> None:
        await gate.wait()

    worker = await process.start(concurrency=7)
    await process.app.enqueue("job")
    await eventually(lambda: worker.active == 1, "a run")
    for path in ("/health", "/healthz", "/live", "/ready", "/readyz", "/ready?verbose=1"):
        status, facts = await get(settings, path)
        assert status == 200
        assert facts["status"] == "ready"
        assert facts["problems"] == []
        assert (facts["active_runs"], facts["capacity"], facts["version"]) == (1, 7, VERSION)
        assert facts["worker_id"] == worker.worker_id
        assert facts["uptime_seconds"] >= 0
    gate.set()


async def test_other_paths_and_methods(process: Process, settings: Settings) -> None:
    await process.start()
    assert await get(settings, "/") == (404, {"detail": "Paths: /health, /ready and /metrics."})
    assert await get(settings, "/health", "POST") == (405, {"detail": "Use GET."})


async def test_an_answer_to_head_has_no_body(process: Process, settings: Settings) -> None:
    await process.start()
    status, body = await get(settings, "/health", "HEAD")
    assert (status, body) == (200, {})


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff\xfe\r\n\r\n",
        b"GET\r\n\r\n",
        b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 5_000,
        b"x" * 70_000,
    ],
    ids=["bytes", "no path", "empty", "endless head", "one long line"],
)
async def test_garbage_does_not_disturb_it(process: Process, settings: Settings, garbage: bytes) -> None:
    await process.start()
    with contextlib.suppress(ConnectionError):  # it may hang up on us
        await ask(settings, garbage)
    status, _ = await get(settings, "/health")
    assert status == 200


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_idle_connections_keep_no_probe_out(process: Process, settings: Settings) -> None:
    await process.start()
    async with contextlib.AsyncExitStack() as stack:
        idle: list[asyncio.StreamReader] = []
        for _ in range(MAX_CONNECTIONS + 30):
            reader, writer = await asyncio.open_connection("127.0.0.1", settings.worker_health_port)
            stack.push_async_callback(_close, writer)
            idle.append(reader)
        status, _ = await get(settings, "/health")
        assert status == 200
        closed = [reader for reader in idle if reader.at_eof() or reader.exception() is not None]
        assert len(closed) >= 30


async def test_a_draining_worker_is_alive_but_not_ready(process: Process, settings: Settings) -> None:
    gate = asyncio.Event()

    @process.app.task("job")
    async def job(ctx: Context) -> None:
        await gate.wait()

    worker = await process.start()
    await process.app.enqueue("job")
    await eventually(lambda: worker.active == 1, "a run")
    stopping = asyncio.create_task(worker.stop(60))
    await eventually(lambda: worker.health.draining, "the drain")
    status, facts = await get(settings, "/ready")
    assert (status, facts["status"], facts["problems"]) == (503, "draining", ["draining"])
    status, _ = await get(settings, "/health")
    assert status == 200
    gate.set()
    await asyncio.wait_for(stopping, 30)
    with pytest.raises(OSError):
        await get(settings, "/health")


async def test_a_lost_lease_is_not_ready(process: Process, settings: Settings) -> None:
    worker = await process.start()
    worker.health.may_work = lambda: False
    status, facts = await get(settings, "/ready")
    assert (status, facts["status"]) == (503, "not_ready")
    assert "the lease is not renewed" in facts["problems"][0]


async def test_an_idle_worker_with_a_long_poll_is_ready(
    process: Process, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runlane.worker.health.CLAIM_LOOP_SECONDS", 0.2)
    await set_lane(await process.app.database(), "default", LaneChange(poll_interval_ms=60_000))
    worker = await process.start()
    # It is idle when its first claim has ended, which may take longer than the stall limit of this test.
    await eventually(lambda: worker.health.claim_loop_turned_at > time.monotonic(), "the worker to wait for work")
    until = time.monotonic() + 1

    async def idle_for_a_while() -> bool:
        status, facts = await get(settings, "/ready")
        assert (status, facts["problems"]) == (200, [])
        return time.monotonic() > until

    await eventually(idle_for_a_while)
    status, facts = await get(settings, "/ready")
    assert (status, facts["problems"]) == (200, [])


async def test_a_blocked_loop_is_not_ready_and_still_answers(
    process: Process, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runlane.worker.health.CLAIM_LOOP_SECONDS", 0.2)
    answers: list[bytes] = []

    @process.app.task("job")
    async def job(ctx: Context) -> None:
        """Block the event loop, and ask for the worker's health meanwhile."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with socket.create_connection(("127.0.0.1", settings.worker_health_port), timeout=30) as link:
                link.sendall(b"GET /ready HTTP/1.1\r\n\r\n")
                answer = b"".join(iter(lambda link=link: link.recv(65536), b""))
            if b"is blocked" in answer:
                answers.append(answer)
                return

    await process.start()
    await process.run("job")
    assert answers
    assert answers[0].startswith(b"HTTP/1.1 503")


async def test_a_taken_port_is_reported(process: Process, settings: Settings) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", settings.worker_health_port))
        taken.listen()
        with pytest.raises(ConfigurationError, match=r"RUNLANE_WORKER_HEALTH_PORT to a free port, or to 0"):
            await process.start()
