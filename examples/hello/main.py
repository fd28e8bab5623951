"""What Runlane does, in a few seconds: accept work, execute it, kill the worker, see nothing lost.

Everything is real: a SQLite file, worker processes, SIGKILL. The exit code is 0 only if every promise was kept.
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
from collections.abc import Callable
from pathlib import Path

from tasks import app, seal_part

from runlane import Event, Run, RunlaneError, Status

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
    say(f"  {time.monotonic() - started:5.1f} s  {who:<15}  {what}")


class WorkerProcess:
    """One `runlane worker`, started and ended as an operator would."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = 0
        self._process: asyncio.subprocess.Process | None = None
        self._online = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._last_lines: list[str] = []

    async def start(self) -> None:
        """Return when the worker has registered itself."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "runlane", "worker", "tasks:app", "--concurrency", "2"),
            cwd=HERE,
            env={**os.environ, "RUNLANE_WORKER_HEALTH_PORT": "0"},
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        self.pid = self._process.pid
        self._reading = asyncio.create_task(self._read(self._process))
        online = asyncio.create_task(self._online.wait())
        await asyncio.wait([online, self._reading], timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        online.cancel()
        if not self._online.is_set():
            raise BrokenPromise(f"{self.name} did not start:\n" + "\n".join(self._last_lines))
        tell(self.name, f"online, pid {self.pid}")

    async def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is cleaned up."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
        if self._reading is not None:
            await self._reading

    async def drain(self) -> int:
        """SIGTERM: finish what runs, then leave."""
        if self._process is None:
            raise BrokenPromise(f"{self.name} was never started.")
        self._process.terminate()
        code = await asyncio.wait_for(self._process.wait(), WAIT_SECONDS)
        if self._reading is not None:
            await self._reading
        return code

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """The worker logs JSON lines to stderr; one of them says that it is online."""
        while process.stderr is not None and (line := await process.stderr.readline()):
            text = line.decode(errors="replace").rstrip()
            self._last_lines = [*self._last_lines[-20:], text]
            with contextlib.suppress(ValueError):
                if json.loads(text)["event"] == "worker_online":
                    self._online.set()


class Watch:
    """Follows the streams of some runs and prints each event once."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.checkpoints = 0
        self._last_seq: dict[str, int] = {}

    async def enqueue(
        self, label: str, task: str, arguments: dict[str, object], *, priority: int = 0, ordering_key: str | None = None
    ) -> str:
        """Accept a run and follow it from its first event on."""
        accepted = await app.enqueue(task, arguments, priority=priority, ordering_key=ordering_key)
        self.labels[accepted.run_id] = label
        self._last_seq[accepted.run_id] = 0
        return accepted.run_id

    async def until(self, enough: Callable[[list[Event]], bool]) -> None:
        """Print events as they come, until `enough` says so of the newest ones."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            fresh = await self._fresh()
            for event in fresh:
                self.checkpoints += event.type == "checkpoint"
                tell(self.labels[event.run_id], _told(event, self.checkpoints))
            if enough(fresh):
                return
            await asyncio.sleep(0.05)
        waiting = [label for run_id, label in self.labels.items() if run_id not in self.ended]
        raise BrokenPromise(f"After {WAIT_SECONDS:.0f} s these runs have not ended: {', '.join(waiting)}")

    def all_ended(self, _: list[Event]) -> bool:
        """Whether every followed run has ended."""
        return len(self.ended) == len(self.labels)

    async def _fresh(self) -> list[Event]:
        fresh: list[Event] = []
        for run_id, last_seq in self._last_seq.items():
            if run_id in self.ended:
                continue
            events = await app.events(run_id, last_seq)
            if events and [event.seq for event in events] != list(range(last_seq + 1, events[-1].seq + 1)):
                raise BrokenPromise(f"The stream of {run_id} has a gap after {last_seq}.")
            for event in events:
                self._last_seq[run_id] = event.seq
                if event.type == "done":
                    self.ended[run_id] = str(event.data["status"])
            fresh += events
        return sorted(fresh, key=lambda event: event.at_us)


def _told(event: Event, checkpoints: int) -> str:
    data = event.data
    match event.type:
        case "queued":
            return f"accepted, {data['status']}"
        case "worker_picked_up":
            return f"starts, attempt {event.attempt}"
        case "log":
            return f"says: {data['message']}"
        case "checkpoint":
            return f"part {checkpoints} of {PARTS} is done and stored"
        case "worker_lost":
            return f"its worker is gone; {data['status']} again"
        case "attempt_failed":
            return f"attempt {event.attempt} failed: {data['message']}; waits and tries again"
        case "key_free":
            return "the one before it has ended, so it may start"
        case "done":
            return str(data["status"])
        case other:
            return other.replace("_", " ")


async def accept_without_workers(watch: Watch) -> list[str]:
    say("1. Work is accepted while no worker runs: it is in the database, so it will be done.")
    for number in (1, 2):
        await watch.enqueue(f"words {number}", "count_words", {"text": POEM})
    await watch.enqueue("words urgent", "count_words", {"text": POEM}, priority=50)
    await watch.enqueue("rate", "exchange_rate", {"currency": "EUR"})
    deposits = [
        await watch.enqueue(
            f"deposit {number}", "deposit", {"account": "7", "cents": number * 100}, ordering_key="account:7"
        )
        for number in (1, 2, 3)
    ]
    await watch.until(lambda _: True)
    return deposits


async def check_deposits(deposits: list[str]) -> None:
    runs = [await app.get(run_id) for run_id in deposits]
    for earlier, later in itertools.pairwise(runs):
        if (earlier.ended_at_us or 0) > (later.claimed_at_us or 0):
            raise BrokenPromise("Two deposits into one account overlapped.")


async def survive_a_kill(watch: Watch, first: WorkerProcess, second: WorkerProcess) -> Run:
    say()
    say(f"3. A run of {PARTS} parts with a checkpoint after each. Its worker is killed after part {KILL_AFTER_PART}.")
    run_id = await watch.enqueue("seal", "seal", {"document": "contract", "parts": PARTS})
    await watch.until(lambda _: watch.checkpoints >= KILL_AFTER_PART)
    await first.kill()
    killed = time.monotonic()
    tell(first.name, f"kill -9, pid {first.pid}")
    await second.start()
    await watch.until(lambda fresh: any(event.type == "worker_picked_up" for event in fresh))
    tell(second.name, f"has the run {time.monotonic() - killed:.1f} s after the kill, its own start included")
    await watch.until(watch.all_ended)
    return await app.get(run_id)


def check_seal(run: Run, checkpoints: int) -> None:
    expected = ""
    for part in range(1, PARTS + 1):
        expected = seal_part(expected, "contract", part)
    if run.status is not Status.COMPLETED or run.result != expected:
        raise BrokenPromise(f"The sealed document is {run.result!r}, not {expected!r}: a part was lost or done twice.")
    if checkpoints != PARTS:
        raise BrokenPromise(f"{PARTS} parts were stored {checkpoints} times: a finished part was done again.")
    if run.losses < 1 or run.failures:
        raise BrokenPromise(f"The kill must count as a loss and not as a failure: {run.losses} and {run.failures}.")


async def show() -> None:
    watch = Watch()
    first, second = WorkerProcess("worker A"), WorkerProcess("worker B")
    try:
        async with app:
            deposits = await accept_without_workers(watch)
            say()
            say("2. A worker starts. The urgent run goes first, the deposits keep their order, the failed one repeats.")
            await first.start()
            await watch.until(watch.all_ended)
            await check_deposits(deposits)
            sealed = await survive_a_kill(watch, first, second)
            check_seal(sealed, watch.checkpoints)
            code = await second.drain()
            tell(second.name, f"drained on SIGTERM, exit code {code}")
            if code != 0 or set(watch.ended.values()) != {"completed"}:
                raise BrokenPromise(f"Exit code {code}; runs ended as {sorted(set(watch.ended.values()))}.")
            say()
            say(f"{len(watch.ended)} runs accepted, {len(watch.ended)} completed, 1 worker killed, nothing lost,")
            say(f"no stored part done again: the seal {sealed.result} is what an undisturbed run gives.")
    finally:
        await first.kill()
        await second.kill()


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
