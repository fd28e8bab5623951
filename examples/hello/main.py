"""What Runlane does, in a few seconds: a server is asked for runs over HTTP, watched live, and killed in the middle.

Everything is real: a serving process with a worker on a SQLite file, HTTP, live streams, SIGKILL. The exit code is 0
only if every promise was kept.
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
WAIT_SECONDS = 60.0
PARTS = 16
KILL_AFTER_PART = 5
POEM = "The run that was accepted is the run that ends, whatever ends the one that runs the run."

started = time.monotonic()


class BrokenPromise(Exception):
    """The example did not show what it should."""


def say(text: str = "") -> None:
    """A line, at once, also into a pipe."""
    print(text, flush=True)


def tell(who: str, what: str) -> None:
    """A line about something that happened now."""
    say(f"  {time.monotonic() - started:5.1f} s  {who:<10}  {what}")


class ServerProcess:
    """One `runlane serve --worker`, started and ended as an operator would."""

    def __init__(self) -> None:
        self.url = ""
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._serving = asyncio.Event()
        self._last_lines: list[str] = []

    @property
    def pid(self) -> int:
        """The process that serves now."""
        return 0 if self._process is None else self._process.pid

    async def start(self) -> None:
        """Return when it serves: on a free port the first time, on the same one after that."""
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
            raise BrokenPromise("The server did not start:\n" + "\n".join(self._last_lines))
        tell("server", f"serves {self.url}, pid {self.pid}")

    async def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is cleaned up."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
        if self._reading is not None:
            await self._reading

    async def drain(self) -> int:
        """SIGTERM: end the streams, finish what runs, then leave."""
        if self._process is None:
            raise BrokenPromise("The server was never started.")
        self._process.terminate()
        code = await asyncio.wait_for(self._process.wait(), WAIT_SECONDS)
        if self._reading is not None:
            await self._reading
        return code

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """It logs JSON lines to stderr; one of them says where it serves."""
        while process.stderr is not None and (line := await process.stderr.readline()):
            text = line.decode(errors="replace").rstrip()
            self._last_lines = [*self._last_lines[-20:], text]
            with contextlib.suppress(ValueError, KeyError):
                told = json.loads(text)
                if told["event"] == "serving":
                    self.url = told["url"]
                    self._serving.set()


class Watch:
    """Follows the live stream of one run, prints each event, and checks that every number comes once."""

    def __init__(self, client: Client, label: str, run_id: str) -> None:
        self.run_id = run_id
        self.status = ""
        self.parts = asyncio.Condition()
        self.parts_done = 0
        self._label = label
        self._last_seq = 0
        self.following = asyncio.create_task(self._follow(client))

    async def until_part(self, part: int) -> None:
        """Return when so many parts are stored."""
        async with self.parts:
            await self.parts.wait_for(lambda: self.parts_done >= part or self.following.done())

    async def _follow(self, client: Client) -> None:
        async for event in client.stream(self.run_id):
            if isinstance(event, LiveEvent):
                continue
            if event.seq != self._last_seq + 1:
                raise BrokenPromise(f"Event {event.seq} of {self._label} came after {self._last_seq}.")
            self._last_seq = event.seq
            async with self.parts:
                self.parts_done += event.type == "checkpoint"
                self.parts.notify_all()
            if event.type == "done":
                self.status = str(event.data["status"])
            tell(self._label, _told(event, self.parts_done))


def _told(event: Event, parts_done: int) -> str:
    data = event.data
    match event.type:
        case "queued":
            return f"accepted, {data['status']}"
        case "worker_picked_up":
            return f"starts, attempt {event.attempt}"
        case "log":
            return f"says: {data['message']}"
        case "checkpoint":
            return f"part {parts_done} of {PARTS} is done and stored"
        case "worker_lost":
            return f"its worker is gone; {data['status']} again"
        case "attempt_failed":
            return f"attempt {event.attempt} failed: {data['error']['message']}; waits and tries again"
        case "key_free":
            return "the one before it has ended, so it may start"
        case "done":
            return str(data["status"])
        case other:
            return other.replace("_", " ")


async def start(
    client: Client, label: str, task: str, arguments: dict[str, object], ordering_key: str | None = None
) -> Watch:
    """Ask for a run over HTTP and follow it from its first event on."""
    accepted = await client.enqueue(task, arguments, ordering_key=ordering_key)
    return Watch(client, label, accepted.run_id)


async def finish(watches: list[Watch]) -> None:
    """Wait until every followed run has ended well."""
    await asyncio.wait_for(asyncio.gather(*(watch.following for watch in watches)), WAIT_SECONDS)
    ends = {watch.status for watch in watches}
    if ends != {"completed"}:
        raise BrokenPromise(f"Runs ended as {sorted(ends)}.")


async def show_runs(client: Client) -> int:
    say("1. Runs are started over HTTP. Deposits into one account keep their order, a failed run repeats.")
    watches = [
        await start(client, "words", "count_words", {"text": POEM}),
        await start(client, "rate", "exchange_rate", {"currency": "EUR"}),
    ]
    deposits = [
        await start(client, f"deposit {number}", "deposit", {"account": "7", "cents": number * 100}, "account:7")
        for number in (1, 2, 3)
    ]
    await finish([*watches, *deposits])
    for earlier, later in itertools.pairwise([await client.get(watch.run_id) for watch in deposits]):
        if (earlier.ended_at_us or 0) > (later.claimed_at_us or 0):
            raise BrokenPromise("Two deposits into one account overlapped.")
    return len(watches) + len(deposits)


async def survive_a_kill(client: Client, server: ServerProcess) -> Run:
    say()
    say(
        f"2. A run of {PARTS} parts with a checkpoint after each. Server and worker are killed after {KILL_AFTER_PART}."
    )
    seal = await start(client, "seal", "seal", {"document": "contract", "parts": PARTS})
    await asyncio.wait_for(seal.until_part(KILL_AFTER_PART), WAIT_SECONDS)
    tell("server", f"kill -9, pid {server.pid}")
    await server.kill()
    await server.start()
    tell("server", "the stream below is the one from above: it reconnected and goes on after its last event")
    await finish([seal])
    run = await client.get(seal.run_id)
    check_seal(run, seal.parts_done)
    return run


def check_seal(run: Run, parts_done: int) -> None:
    expected = ""
    for part in range(1, PARTS + 1):
        expected = seal_part(expected, "contract", part)
    if run.status is not Status.COMPLETED or run.result != expected:
        raise BrokenPromise(f"The sealed document is {run.result!r}, not {expected!r}: a part was lost or done twice.")
    if parts_done != PARTS:
        raise BrokenPromise(f"{PARTS} parts were stored {parts_done} times: a finished part was done again.")
    if run.losses < 1 or run.failures:
        raise BrokenPromise(f"The kill must count as a loss and not as a failure: {run.losses} and {run.failures}.")


async def show() -> None:
    server = ServerProcess()
    try:
        await server.start()
        async with Client(server.url, retry_policy=RetryPolicy(longest_seconds=0.5)) as client:
            count = 1 + await show_runs(client)
            sealed = await survive_a_kill(client, server)
        code = await server.drain()
        tell("server", f"drained on SIGTERM, exit code {code}")
        if code != 0:
            raise BrokenPromise(f"The server ended with exit code {code}.")
        say()
        say(f"{count} runs accepted, {count} completed, 1 server killed, nothing lost, every event seen once,")
        say(f"no stored part done again: the seal {sealed.result} is what an undisturbed run gives.")
    finally:
        await server.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description="Runlane in a few seconds.")
    parser.add_argument("--folder", type=Path, help="Keep the database here, to look at it afterwards.")
    folder: Path | None = parser.parse_args().folder
    with tempfile.TemporaryDirectory(prefix="runlane-hello-") as temporary:
        file = (folder or Path(temporary)).resolve() / "runlane.db"
        os.environ["RUNLANE_DATABASE_URL"] = f"sqlite:///{file}"
        say(f"Runlane on one SQLite file: {file}")
        say()
        try:
            asyncio.run(show())
        except (BrokenPromise, RunlaneError, TimeoutError) as error:
            say(f"BROKEN: {error}")
            return 1
    if folder is not None:
        say(f"Look at it: RUNLANE_DATABASE_URL=sqlite:///{file} runlane runs list")
    return 0


if __name__ == "__main__":
    sys.exit(main())
