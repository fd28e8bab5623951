"""Show Runlane in a few seconds: start runs over HTTP, follow them live, and kill the server in the middle.

A server process with a worker runs on a SQLite file; the kill is a real SIGKILL. The exit code is 0 only if every
guarantee held.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from tasks import seal_part

from runlane import Client, Event, LiveEvent, Run, RunlaneError, Status
from runlane.client import RetryPolicy

HERE = Path(__file__).parent
WAIT_SECONDS = 120.0
PARTS = 16
KILL_AFTER_PART = 5
DOCUMENT = "An accepted run ends, even if the process that executes it is killed."

started = time.monotonic()


class CheckFailed(Exception):
    """A guarantee did not hold."""


def print_line(text: str = "") -> None:
    """Print a line and flush it."""
    print(text, flush=True)


def log(source: str, text: str) -> None:
    """Print a line with its time and source."""
    print_line(f"  {time.monotonic() - started:5.1f} s  {source:<10}  {text}")


class ServerProcess:
    """One `runlane serve --worker` process."""

    def __init__(self) -> None:
        self.url = ""
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._serving = asyncio.Event()
        self._last_lines: list[str] = []

    @property
    def pid(self) -> int:
        """Return the id of the running process, or 0."""
        return 0 if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the server, on a free port the first time and on the same port later, and wait until it serves."""
        port = self.url.rpartition(":")[2] or "0"
        self._serving.clear()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "runlane", "serve", "tasks:app", "--worker", "--port", port),
            cwd=HERE,
            env={**os.environ, "RUNLANE_WORKER_HEALTH_PORT": "0"},
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read(self._process))
        serving = asyncio.create_task(self._serving.wait())
        await asyncio.wait([serving, self._reading], timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        if not self._serving.is_set():
            raise CheckFailed("The server did not start:\n" + "\n".join(self._last_lines))
        log("server", f"serves {self.url}, pid {self.pid}")

    async def kill(self) -> None:
        """Send SIGKILL: no handler runs, nothing is cleaned up."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
        if self._reading is not None:
            await self._reading

    async def drain(self) -> int:
        """Send SIGTERM, let it end its streams and runs, and return its exit code."""
        if self._process is None:
            raise CheckFailed("The server was never started.")
        self._process.terminate()
        code = await asyncio.wait_for(self._process.wait(), WAIT_SECONDS)
        if self._reading is not None:
            await self._reading
        return code

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Read its log, JSON lines on stderr, until one reports its URL."""
        while process.stderr is not None and (line := await process.stderr.readline()):
            text = line.decode(errors="replace").rstrip()
            self._last_lines = [*self._last_lines[-20:], text]
            with contextlib.suppress(ValueError, KeyError):
                entry = json.loads(text)
                if entry["event"] == "serving":
                    self.url = entry["url"]
                    self._serving.set()


class RunMonitor:
    """Follows the stream of one run, prints each event, and checks that every number occurs once."""

    def __init__(self, client: Client, label: str, run_id: str) -> None:
        self.run_id = run_id
        self.status = ""
        self.parts = asyncio.Condition()
        self.parts_done = 0
        self._label = label
        self._last_seq = 0
        self.following = asyncio.create_task(self._follow(client))

    async def until_part(self, part: int) -> None:
        """Wait until this part is stored."""
        async with self.parts:
            await self.parts.wait_for(lambda: self.parts_done >= part or self.following.done())

    async def _follow(self, client: Client) -> None:
        async for event in client.stream(self.run_id):
            if isinstance(event, LiveEvent):
                continue
            if event.seq != self._last_seq + 1:
                raise CheckFailed(f"Event {event.seq} of {self._label} follows {self._last_seq}.")
            self._last_seq = event.seq
            async with self.parts:
                self.parts_done += event.type == "checkpoint"
                self.parts.notify_all()
            if event.type == "done":
                self.status = str(event.data["status"])
            log(self._label, describe(event, self.parts_done))


def describe(event: Event, parts_done: int) -> str:
    data = event.data
    match event.type:
        case "queued":
            return f"accepted, {data['status']}"
        case "worker_picked_up":
            return f"starts, attempt {event.attempt}"
        case "log":
            return f"logs: {data['message']}"
        case "checkpoint":
            return f"part {parts_done} of {PARTS} is stored"
        case "worker_lost":
            return f"worker lost, {data['status']} again"
        case "attempt_failed":
            return f"attempt {event.attempt} failed: {data['error']['message']}; retried after a backoff"
        case "key_free":
            return "the run before it has ended; it may start"
        case "done":
            return str(data["status"])
        case other:
            return other.replace("_", " ")


async def start(
    client: Client, label: str, task: str, arguments: dict[str, object], ordering_key: str | None = None
) -> RunMonitor:
    """Start a run over HTTP and follow it from its first event."""
    accepted = await client.enqueue(task, arguments, ordering_key=ordering_key)
    return RunMonitor(client, label, accepted.run_id)


async def finish(monitors: list[RunMonitor]) -> None:
    """Wait until every followed run has completed."""
    await asyncio.wait_for(asyncio.gather(*(monitor.following for monitor in monitors)), WAIT_SECONDS)
    ends = {monitor.status for monitor in monitors}
    if ends != {"completed"}:
        raise CheckFailed(f"Runs ended as {sorted(ends)}.")


async def show_runs(client: Client) -> int:
    print_line("1. Runs are started over HTTP. Deposits into one account keep their order, a failed run is retried.")
    monitors = [
        await start(client, "words", "count_words", {"text": DOCUMENT}),
        await start(client, "rate", "exchange_rate", {"currency": "EUR"}),
    ]
    deposits = [
        await start(client, f"deposit {number}", "deposit", {"account": "7", "cents": number * 100}, "account:7")
        for number in (1, 2, 3)
    ]
    await finish([*monitors, *deposits])
    for earlier, later in itertools.pairwise([await client.get(monitor.run_id) for monitor in deposits]):
        if (earlier.ended_at_us or 0) > (later.claimed_at_us or 0):
            raise CheckFailed("Two deposits into one account overlapped.")
    return len(monitors) + len(deposits)


async def survive_a_kill(client: Client, server: ServerProcess) -> Run:
    print_line()
    print_line(
        f"2. A run of {PARTS} parts with a checkpoint after each. Server and worker are killed after {KILL_AFTER_PART}."
    )
    seal = await start(client, "seal", "seal", {"document": "contract", "parts": PARTS})
    await asyncio.wait_for(seal.until_part(KILL_AFTER_PART), WAIT_SECONDS)
    log("server", f"kill -9, pid {server.pid}")
    await server.kill()
    await server.start()
    log("server", "the stream below is the same one: it reconnected and continues after its last event")
    await finish([seal])
    run = await client.get(seal.run_id)
    check_seal(run, seal.parts_done)
    return run


def check_seal(run: Run, parts_done: int) -> None:
    expected = ""
    for part in range(1, PARTS + 1):
        expected = seal_part(expected, "contract", part)
    if run.status is not Status.COMPLETED or run.result != expected:
        raise CheckFailed(f"The sealed document is {run.result!r}, not {expected!r}: a part was lost or repeated.")
    if parts_done != PARTS:
        raise CheckFailed(f"{PARTS} parts were stored {parts_done} times: a stored part was repeated.")
    if run.losses < 1 or run.failures:
        raise CheckFailed(f"The kill must count as a loss, not as a failure: {run.losses} and {run.failures}.")


async def demonstrate() -> None:
    server = ServerProcess()
    try:
        await server.start()
        async with Client(server.url, retry_policy=RetryPolicy(longest_seconds=0.5)) as client:
            count = 1 + await show_runs(client)
            sealed = await survive_a_kill(client, server)
        code = await server.drain()
        log("server", f"drained on SIGTERM, exit code {code}")
        if code != 0:
            raise CheckFailed(f"The server ended with exit code {code}.")
        print_line()
        print_line(
            f"{count} runs accepted, {count} completed, 1 server killed, nothing lost, every event received once,"
        )
        print_line(f"no stored part repeated: the seal {sealed.result} equals that of an undisturbed run.")
    finally:
        await server.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description="Show Runlane in a few seconds.")
    parser.add_argument("--folder", type=Path, help="Keep the database in this folder.")
    folder: Path | None = parser.parse_args().folder
    with tempfile.TemporaryDirectory(prefix="runlane-hello-") as temporary:
        file = (folder or Path(temporary)).resolve() / "runlane.db"
        os.environ["RUNLANE_DATABASE_URL"] = f"sqlite:///{file}"
        print_line(f"Runlane on one SQLite file: {file}")
        print_line()
        try:
            asyncio.run(demonstrate())
        except (CheckFailed, RunlaneError, TimeoutError) as error:
            print_line(f"FAILED: {error}")
            return 1
    if folder is not None:
        print_line(f"Inspect it: RUNLANE_DATABASE_URL=sqlite:///{file} runlane runs list")
    return 0


if __name__ == "__main__":
    sys.exit(main())
