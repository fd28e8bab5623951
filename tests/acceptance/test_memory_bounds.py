"""A run that multiplies its input: it fails with the limit's code, and its worker and the runs beside it continue."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from runlane import App
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.settings import Settings
from tests.harness import settings_for

MEMORY_BYTES = 2 * 1024**3
MAX_RUN_BYTES = 24 * 1024**2
# 640 kB, a hundred times: 64 million characters in each of six branches.
MESSAGE = "x" * 640_000
BRANCHES = [f"branch{number}" for number in range(6)]
AMPLIFIED = "{{user_input}}" * 100
MANY: dict[str, Any] = {
    "id": "many",
    "steps": [
        {"id": "fan", "type": "parallel", "parallel_branches": [[name] for name in BRANCHES]},
        *({"id": name, "type": "print", "print_content": AMPLIFIED} for name in BRANCHES),
    ],
}
# Each round writes more than a megabyte, and nothing of it stays in the state.
LONG: dict[str, Any] = {
    "id": "long",
    "max_total_turns": 10_000,
    "steps": [
        {"id": "rounds", "type": "loop", "loop_step_ids": ["line"], "loop_count": 5000, "collect": False},
        {"id": "line", "type": "print", "print_content": "{{user_input}}"},
    ],
}
INNOCENT: dict[str, Any] = {
    "id": "innocent",
    "steps": [
        {"id": "rounds", "type": "loop", "loop_step_ids": ["line"], "loop_count": 30},
        {"id": "line", "type": "print", "print_content": "Hello {{user_input}}", "output_key": "line"},
    ],
}


@pytest.fixture
def settings(sqlite_url: str) -> Settings:
    return settings_for(sqlite_url)


@pytest.fixture
def worker(settings: Settings, tmp_path: Path) -> Generator[subprocess.Popen[bytes]]:
    """A worker process that gets no memory beyond a bound."""
    bounded = (
        "import os, resource, sys; "
        f"resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES})); "
        "os.execv(sys.executable, [sys.executable, '-m', 'runlane', 'worker'])"
    )
    assert settings.database_url is not None
    environment = {
        "RUNLANE_DATABASE_URL": settings.database_url.get_secret_value(),
        "RUNLANE_WORKER_HEALTH_PORT": "0",
        "RUNLANE_MAX_RUN_BYTES": str(MAX_RUN_BYTES),
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
    }
    with (tmp_path / "worker.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", bounded], cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield child
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(60)
            print((tmp_path / "worker.log").read_text(errors="replace")[-4000:])


def peak_mb(child: subprocess.Popen[bytes]) -> float:
    status = Path(f"/proc/{child.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def outcome(app: App, poison: dict[str, Any], worker: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Run the poison beside innocent runs; its error, once all have ended."""
    await sync_definitions(
        await app.database(), "default", parse_bodies({"orchestrations": [poison, INNOCENT]}), actor="test"
    )
    wanted = [await app.orchestrate("innocent", "Ada") for _ in range(3)]
    hostile = [await app.orchestrate(poison["id"], MESSAGE) for _ in range(2)]
    wanted += [await app.orchestrate("innocent", "Grace") for _ in range(3)]
    for accepted in wanted:
        run = await app.wait(accepted.run_id, timeout=100)
        assert (run.status, run.losses) == ("completed", 0)
    ends = [await app.wait(accepted.run_id, timeout=100) for accepted in hostile]
    assert [(run.status, run.losses) for run in ends] == [("failed", 0)] * 2
    assert worker.poll() is None
    return dict(ends[0].error or {})


async def test_six_branches_that_render_64_million_characters_each(
    settings: Settings, worker: subprocess.Popen[bytes]
) -> None:
    async with App(settings) as app:
        error = await outcome(app, MANY, worker)
    assert error["type"] == "template_too_large"
    assert error["step"] in BRANCHES
    for part in (error["step"], "4194304 bytes", "RUNLANE_MAX_STEP_BYTES"):
        assert part in error["message"]
    assert peak_mb(worker) < 300


async def test_a_loop_that_writes_without_end(settings: Settings, worker: subprocess.Popen[bytes]) -> None:
    async with App(settings) as app:
        error = await outcome(app, LONG, worker)
    assert error["type"] == "run_too_large"
    assert f"{MAX_RUN_BYTES} bytes of events and step records (RUNLANE_MAX_RUN_BYTES)" in error["message"]
    assert peak_mb(worker) < 300
