"""Workers that are started as jobs, the probe of containers, and the protocol of the service manager."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from runlane import App, Context
from tests import forking
from tests.harness import settings_for
from tests.server_process import TASKS, command, environment, free_port, serving

QUICK = {"RUNLANE_HEARTBEAT_SECONDS": "0.1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


def variables(folder: Path, **more: str) -> dict[str, str]:
    return {"RUNLANE_DATABASE_URL": f"sqlite:///{folder}/runs.db", **QUICK, **more}


async def test_a_worker_ends_after_its_runs_and_when_it_is_idle(folder: Path) -> None:
    app = App(settings_for(variables(folder)["RUNLANE_DATABASE_URL"]))

    @app.task("talk")
    async def talk(ctx: Context, count: int) -> int:
        return count

    async with app:
        runs = [await app.enqueue("talk", {"count": 1}) for _ in range(3)]

        async def statuses() -> list[str]:
            return sorted([(await app.get(run.run_id)).status.value for run in runs])

        first = await asyncio.to_thread(command, folder, "worker", "tasks:app", "--max-runs", "2", **variables(folder))
        assert first.returncode == 0, first.stderr
        assert await statuses() == ["completed", "completed", "queued"]
        rest = await asyncio.to_thread(command, folder, "worker", "tasks:app", "--idle-exit", **variables(folder))
        assert rest.returncode == 0, rest.stderr
        assert await statuses() == ["completed"] * 3


def test_the_probe_reports_life_and_readiness(folder: Path) -> None:
    port = free_port()
    missing = command(folder, "health", "--port", str(port), **variables(folder))
    assert missing.returncode == 1
    with serving(folder, variables(folder), "serve", "tasks:app") as server:
        for more in ((), ("--ready",)):
            alive = command(folder, "health", "--port", str(server.port), *more, **variables(folder))
            assert alive.returncode == 0, alive.stderr


@pytest.mark.parametrize("role", ["serve", "worker"])
def test_the_service_manager_is_notified(folder: Path, role: str) -> None:
    address = str(folder / "notify.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        notified = variables(folder, NOTIFY_SOCKET=address, WATCHDOG_USEC="200000")
        arguments = ["--port", str(free_port())] if role == "serve" else []
        process = forking.Popen(
            [sys.executable, "-m", "runlane", role, "tasks:app", *arguments], cwd=folder, env=environment(**notified)
        )
        try:
            assert manager.recv(100) == b"READY=1"
            assert manager.recv(100) == b"WATCHDOG=1"
            assert manager.recv(100) == b"WATCHDOG=1"
            os.kill(process.pid, signal.SIGTERM)
            received = b""
            while received != b"STOPPING=1":
                received = manager.recv(100)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
