"""`runlane serve` answers /health before it loads the API; other requests wait until it has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.server_process import START_SECONDS, environment, free_port

# What a server loads for its other responses. Most of the time of a start is theirs.
HEAVY = ["fastapi", "sqlalchemy", "structlog", "uvicorn", "runlane.api", "runlane.app", "runlane.settings"]
# Imported by every interpreter: it stops the import of one of these until a line arrives on standard input.
GATE = f"""
import sys

class Gate:
    passed = False

    def find_spec(self, name, path=None, target=None):
        if name in {HEAVY!r} and not Gate.passed and "serve" in sys.argv:
            Gate.passed = True
            if sys.stdin.readline().strip() == "fail":
                raise ImportError(f"{{name}} is broken")
        return None

sys.meta_path.insert(0, Gate())
"""


class Gated:
    """A server that loads its heavy modules when the test sends it a line."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def wait_for_health(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert self.process.poll() is None, "the server ended"
            with suppress(OSError, HTTPException):
                assert self.get("/health")[0] == 200
                return
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def go_on(self, word: str = "load") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()


@contextmanager
def gated(folder: Path, *arguments: str) -> Generator[Gated]:
    (folder / "sitecustomize.py").write_text(GATE)
    port = free_port()
    variables = environment(
        RUNLANE_DATABASE_URL=f"sqlite:///{folder / 'runs.db'}",
        PYTHONPATH=os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    )
    # An interpreter, because the fork of a process that has imported Runlane would load nothing.
    process = subprocess.Popen(
        [sys.executable, "-m", "runlane", "serve", *arguments, "--port", str(port)],
        cwd=folder, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield Gated(process, port)
    finally:
        process.kill()
        process.communicate()


def test_health_needs_none_of_the_modules_that_take_long(tmp_path: Path) -> None:
    with gated(tmp_path) as server, ThreadPoolExecutor() as threads:
        server.wait_for_health()
        assert server.get("/ready")[0] == 503
        waiting = [threads.submit(server.get, path) for path in ("/api/v2/runs", "/api/v2/lanes", "/no/such/path")]
        assert server.get("/health")[0] == 200
        assert not any(request.done() for request in waiting)
        server.go_on()
        assert [request.result()[0] for request in waiting] == [200, 200, 404]
        assert server.get("/ready")[0] == 200
        before, after = {"status": "ok", "dev": None}, server.get("/health")[1]
        assert {**before, "version": after["version"]} == after
        server.process.terminate()
        assert server.process.wait(60) == 0


def test_a_server_that_cannot_load_ends_and_reports_why(tmp_path: Path) -> None:
    with gated(tmp_path) as server, ThreadPoolExecutor() as threads:
        server.wait_for_health()
        waiting = threads.submit(server.get, "/api/v2/runs")
        server.go_on("fail")
        output, _ = server.process.communicate(timeout=120)
        assert server.process.returncode == 1
        assert "is broken" in output
        assert isinstance(waiting.exception(), OSError | HTTPException)


def test_a_server_that_may_not_serve_ends_and_reports_why(tmp_path: Path) -> None:
    with gated(tmp_path, "--host", "0.0.0.0") as server:
        server.wait_for_health()
        server.go_on()
        output, _ = server.process.communicate(timeout=120)
        assert server.process.returncode == 1
        assert "No API key exists" in output
