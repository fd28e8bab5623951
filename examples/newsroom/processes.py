"""Start and stop the processes of the demonstration: an API server and two workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

HERE = Path(__file__).parent
WAIT_SECONDS = 120.0


class StartError(Exception):
    """A process ended or did not become ready in time."""


class Process:
    """One `runlane` process in a folder. `ready_log` is the log line that it emitted when it was ready."""

    def __init__(self, folder: Path, *arguments: str, ready: str) -> None:
        self.ready_log: dict[str, str] = {}
        self._folder = folder
        self._arguments = arguments
        self._ready = ready
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()
        self._last_lines: list[str] = []

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process and wait until it is ready."""
        paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "runlane", *self._arguments),
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": paths, "RUNLANE_WORKER_HEALTH_PORT": "0"},
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read(self._process))
        ready = asyncio.create_task(self._is_ready.wait())
        await asyncio.wait([ready, self._reading], timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not self._is_ready.is_set():
            raise StartError(f"runlane {self._arguments[0]} did not start:\n" + "\n".join(self._last_lines))

    async def kill(self) -> None:
        """Send SIGKILL: no handler runs, nothing is cleaned up."""
        await self._stop(signal.SIGKILL)

    async def drain(self) -> int:
        """Send SIGTERM, let it finish, and return its exit code."""
        return await self._stop(signal.SIGTERM)

    async def _stop(self, signal_number: signal.Signals) -> int:
        if self._process is None:
            return 0
        if self._process.returncode is None:
            self._process.send_signal(signal_number)
        code = await asyncio.wait_for(self._process.wait(), WAIT_SECONDS)
        if self._reading is not None:
            await self._reading
        return code

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Read its log, JSON lines on stderr, until one reports that it is ready."""
        while process.stderr is not None and (line := await process.stderr.readline()):
            text = line.decode(errors="replace").rstrip()
            self._last_lines = [*self._last_lines[-20:], text]
            with contextlib.suppress(ValueError, KeyError):
                entry = json.loads(text)
                if entry["event"] == self._ready:
                    self.ready_log = entry
                    self._is_ready.set()
