"""`runlane dev` and `runlane serve` as processes of a test: started, killed, known to be ready."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

from runlane.testing.local import PORTS
from tests import forking

START_SECONDS = 60.0
# A process takes its port some time after it was told which. Until then nobody else may choose it: neither a server of
# runlane.testing, which has a range of its own, nor another process of this suite. Another suite on this machine may,
# but in an order of its own.
_SHARES = 8
_share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _SHARES
_ours = range(PORTS.start - 8_000 + _share, PORTS.start, _SHARES)
_ports = cycle(random.sample(_ours, len(_ours)))

TASKS = """
import asyncio
from runlane import App, Context, Fail

app = App()

@app.task("talk")
async def talk(ctx: Context, count: int, pause_seconds: float = 0.0) -> int:
    done = ctx.saved or 0
    for number in range(done + 1, count + 1):
        await ctx.log(f"line {number}", number=number)
        await ctx.progress(number / count, f"{number} of {count}")
        await ctx.checkpoint(number)
        await asyncio.sleep(pause_seconds)
    return count

@app.task("refuse")
async def refuse(ctx: Context) -> None:
    raise Fail("no thanks")
"""


def environment(**variables: str) -> dict[str, str]:
    """Ours without settings of whoever runs the tests."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("RUNLANE_")}
    return {**plain, "RUNLANE_WORKER_HEALTH_PORT": "0", **variables}


def free_port() -> int:
    """A port that nobody listens on and that no outgoing connection is given."""
    for port in islice(_ports, len(_ours)):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("no port is free")


class ServerProcess:
    """One serving process."""

    def __init__(self, folder: Path, variables: Mapping[str, str], *arguments: str, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = (folder / f"server-{self.port}.log").open("ab")
        self._process = forking.Popen(
            [sys.executable, "-m", "runlane", *arguments, "--port", str(self.port)],
            cwd=folder,
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self._process.poll() is None, Path(self._log.name).read_text()
            try:
                with urllib.request.urlopen(f"{self.url}/ready", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AssertionError(f"{self.url} is not ready: {Path(self._log.name).read_text()}")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(60)
        finally:
            self._process.kill()
            self._log.close()


@contextmanager
def serving(
    folder: Path, variables: Mapping[str, str], *arguments: str, port: int | None = None
) -> Generator[ServerProcess]:
    """A serving process that is ready, and ends with the block."""
    server = ServerProcess(folder, variables, *arguments, port=port)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def command(
    folder: Path, *arguments: str, given: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """One `runlane` command, to its end."""
    return forking.run(
        [sys.executable, "-m", "runlane", *arguments],
        cwd=folder,
        env=environment(**variables),
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def write_tasks(folder: Path) -> Mapping[str, str]:
    """The test's tasks in a folder, and the settings of its database."""
    (folder / "tasks.py").write_text(TASKS)
    return {"RUNLANE_DATABASE_URL": f"sqlite:///{folder / 'runlane.db'}"}
