"""Run an agent with tools in an orchestration, follow it live, kill its worker and answer its questions.

An API server and two workers run on a SQLite file, with a Redis-compatible server for live events; the kill is a real
SIGKILL. Only the model is scripted unless you name another, so that the demonstration costs nothing. The exit code is 0
only if every guarantee held.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import webbrowser
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

from console import Console, print_event
from processes import HERE, WAIT_SECONDS, Process, StartError

from runlane import Client, Event, LiveEvent, RunlaneError, Status, WrongState
from runlane.testing import MissingBinaryError, RedisServer

TOPIC = "the old lighthouse"
SCRIPTED = "scripted"
APPROVE = {"decision": "approve"}
PRINT = {"decision": "print", "notes": "Front page."}
STORY = "drafts/1/story"
OTHER_DRAFTS = ("drafts/0/headline", "drafts/2/caption")
KILL_AFTER_CHARACTERS = 40
REAL_MODEL_HINT = (
    'The model was scripted. To use a real one: OPENAI_API_KEY=... make run ARGS="--model openai:gpt-5-mini" '
    "(or ANTHROPIC_API_KEY and anthropic:claude-sonnet-5-5; or, without a key, OLLAMA_BASE_URL and ollama:qwen3)."
)

console = Console()


class CheckFailed(Exception):
    """A guarantee did not hold."""


class RunMonitor:
    """Follows one run, prints its events, and keeps what the demonstration needs of them."""

    def __init__(self) -> None:
        self.completed = Counter[str]()
        self.answers = Counter[tuple[str, str]]()
        self.questions: list[dict[str, Any]] = []
        self.worker_id = ""
        self.paused = False
        self.changed = asyncio.Condition()
        self._last_seq = 0

    async def follow(self, client: Client, run_id: str) -> None:
        """Follow the run to its end. The client reconnects; no number may be repeated or left out."""
        async for event in client.stream(run_id):
            if isinstance(event, LiveEvent):
                console.write(event)
            elif event.seq != self._last_seq + 1:
                raise CheckFailed(f"Event {event.seq} follows {self._last_seq}.")
            else:
                self._last_seq = event.seq
                print_event(console, event)
                self._record(event)
            async with self.changed:
                self.changed.notify_all()

    def _record(self, event: Event) -> None:
        match event.type:
            case "step_complete":
                self.completed[event.data["path"]] += 1
            case "model_response":
                self.answers[event.data["path"], event.data["answer"]] += 1
            case "worker_picked_up":
                self.worker_id = event.data["worker_id"]
            case "human_input_required":
                self.questions.append(event.data)
            case "paused" | "resumed":
                self.paused = event.type == "paused"
            case _:
                pass


async def start(client: Client) -> tuple[str, RunMonitor, asyncio.Task[None]]:
    """Sync the definitions, start the orchestration, and follow it from its first event."""
    definitions = {
        folder.name: [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
        for folder in (HERE / "definitions").iterdir()
    }
    for item in (await client.sync(definitions))["items"]:
        console.log("sync", f"{item['change']} {item['kind']} {item['id']}")
    accepted = await client.orchestrate("article", TOPIC)
    monitor = RunMonitor()
    return accepted.run_id, monitor, asyncio.create_task(monitor.follow(client, accepted.run_id))


async def answer(client: Client, run_id: str, monitor: RunMonitor) -> None:
    """Answer the questions of the run in place of a person, when it is paused."""
    while True:
        async with monitor.changed:
            await monitor.changed.wait_for(lambda: monitor.paused and monitor.questions)
            questions, monitor.questions = monitor.questions, []
        for question in questions:
            options = {option for field in question["fields"] for option in field.get("options", [])}
            given = APPROVE if "approve" in options else PRINT
            console.print()
            console.log("demo", f"answers in place of a person: {given}")
            console.print()
            with contextlib.suppress(WrongState):  # another client has answered
                await client.resume(run_id, given, step=question["path"])


async def wait_until_half_written(monitor: RunMonitor, following: asyncio.Task[None], live: bool) -> None:
    """Return when the other drafts are complete and the story is not, or when the story is complete."""

    def ready() -> bool:
        others_complete = all(monitor.completed[path] for path in OTHER_DRAFTS)
        half_written = not live or console.printed(STORY) >= KILL_AFTER_CHARACTERS
        return bool(monitor.completed[STORY]) or (others_complete and half_written)

    async def wait() -> None:
        async with monitor.changed:
            await monitor.changed.wait_for(ready)

    waiting = asyncio.create_task(wait())
    await asyncio.wait([waiting, following], timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def kill_worker(monitor: RunMonitor, workers: list[Process]) -> None:
    """Kill the process that executes the run, and no other."""
    victim = next(worker for worker in workers if worker.ready_log["worker_id"] == monitor.worker_id)
    console.print()
    console.log("operator", f"kill -9 {victim.pid}: the worker dies while it streams the story")
    console.print()
    await victim.kill()


async def check(client: Client, run_id: str, monitor: RunMonitor, folder: Path, *, scripted: bool) -> str:
    """Check the guarantees: no step or model answer twice, at most one photograph, one article."""
    run = await client.get(run_id)
    if run.status is not Status.COMPLETED:
        raise CheckFailed(f"The run is {run.status}: {(run.error or {}).get('message', 'unknown')}")
    repeated = [path for path, times in monitor.completed.items() if times != 1]
    paid_twice = [key for key, times in monitor.answers.items() if times != 1]
    if repeated or paid_twice:
        raise CheckFailed(f"Executed more than once: {repeated} {paid_twice}")
    if scripted:
        await check_script(client, run_id, run.losses, folder)
    printed = list((folder / "published").iterdir())
    if [str(file.relative_to(folder)) for file in printed] != [run.result]:
        raise CheckFailed(f"{run.result} should be printed, not {printed}.")
    return printed[0].read_text()


async def check_script(client: Client, run_id: str, losses: int, folder: Path) -> None:
    """Check what holds only for known answers: which attempt completed each step."""
    attempts = {step.path: step.attempt for step in await client.steps(run_id)}
    before = all(attempts[path] < attempts[STORY] for path in ("research", *OTHER_DRAFTS))
    if losses != 1 or not before:
        raise CheckFailed(f"{losses} workers were lost, and the steps were executed in these attempts: {attempts}")
    orders = list((folder / "orders").iterdir())
    if len(orders) != 1:
        raise CheckFailed(f"One photograph was approved, but {len(orders)} were ordered.")


async def demonstrate(folder: Path, *, scripted: bool, live: bool, open_ui: bool) -> str:
    """Return the address of the run in the dashboard."""
    server = Process(folder, "serve", "tasks:app", "--port", "0", ready="serving")
    workers = [Process(folder, "worker", "tasks:app", ready="worker_online") for _ in range(2)]
    console.log("demo", "starts an API server and two workers")
    try:
        await asyncio.gather(*(process.start() for process in (server, *workers)))
        console.log("server", f"serves {server.ready_log['url']}, pid {server.pid}")
        for worker in workers:
            console.log("worker", f"{worker.ready_log['worker_id']}, pid {worker.pid}")
        async with Client(server.ready_log["url"]) as client:
            run_id, monitor, following = await start(client)
            link = f"{server.ready_log['url']}/ui/runs/{run_id}"
            console.log("demo", f"the run in the dashboard: {link}")
            if open_ui:
                webbrowser.open(link)
            answering = asyncio.create_task(answer(client, run_id, monitor))
            try:
                await wait_until_half_written(monitor, following, live)
                if not following.done():
                    await kill_worker(monitor, workers)
                await asyncio.wait_for(following, WAIT_SECONDS)
            finally:
                answering.cancel()
            article = await check(client, run_id, monitor, folder, scripted=scripted)
        console.print()
        console.print(article)
        console.print(
            f"{monitor.completed.total()} steps and {monitor.answers.total()} model answers, each recorded once; "
            "1 worker killed, 1 draft written again, nothing lost."
        )
        if open_ui:
            console.print(f"Look at it: {link} (Ctrl-C ends the demonstration)")
            await wait_for_interrupt()
        codes = await asyncio.gather(*(process.drain() for process in (server, *workers)))
        if sorted(codes) != [-9, 0, 0]:
            raise CheckFailed(f"The processes exited with {codes}.")
        return link
    finally:
        for process in (server, *workers):
            await process.kill()


async def wait_for_interrupt() -> None:
    """Return after Ctrl-C or SIGTERM."""
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    await interrupted.wait()


@contextlib.contextmanager
def live_events() -> Generator[bool]:
    """Start a Redis-compatible server for live events, if one is installed; yield whether there is one."""
    if "RUNLANE_REDIS_URL" in os.environ:
        yield True
        return
    with contextlib.ExitStack() as stack:
        try:
            os.environ["RUNLANE_REDIS_URL"] = stack.enter_context(RedisServer()).url
        except MissingBinaryError:
            console.print("No Redis-compatible server is installed: answers are shown when they are complete.")
        yield "RUNLANE_REDIS_URL" in os.environ


def main() -> int:
    parser = argparse.ArgumentParser(description="Run an agent with tools, from its first step to a printed article.")
    parser.add_argument("--folder", type=Path, help="Keep the database and the article in this folder.")
    parser.add_argument("--model", help="The model, such as openai:gpt-5-mini. Default: RUNLANE_DEFAULT_MODEL.")
    parser.add_argument("--open", action="store_true", help="Open the run in a browser, and serve until Ctrl-C.")
    options = parser.parse_args()
    model: str = options.model or os.environ.get("RUNLANE_DEFAULT_MODEL") or SCRIPTED
    with tempfile.TemporaryDirectory(prefix="runlane-newsroom-") as temporary, live_events() as live:
        folder = (options.folder or Path(temporary)).resolve()
        os.environ["RUNLANE_DATABASE_URL"] = f"sqlite:///{folder / 'runlane.db'}"
        os.environ["RUNLANE_DEFAULT_MODEL"] = model
        console.print(f"Runlane on one SQLite file: {folder / 'runlane.db'}")
        console.print(f"Model: {model}")
        console.print()
        try:
            link = asyncio.run(demonstrate(folder, scripted=model == SCRIPTED, live=live, open_ui=options.open))
        except (CheckFailed, StartError, RunlaneError, TimeoutError) as error:
            console.print(f"FAILED: {error}")
            return 1
    if model == SCRIPTED:
        console.print(REAL_MODEL_HINT)
    if not options.open:
        console.print(f"The run was on {link}. To serve it until Ctrl-C: make run ARGS=--open")
    if options.folder is not None:
        console.print(f"Inspect it: RUNLANE_DATABASE_URL={os.environ['RUNLANE_DATABASE_URL']} runlane runs list")
    return 0


if __name__ == "__main__":
    sys.exit(main())
