"""An orchestration from its first step to its last: watched live, its worker killed, its question answered.

Everything is real: an API server and two workers on a SQLite file, HTTP, a live stream, SIGKILL. Only the model is
scripted, so that nothing has to be paid for. The exit code is 0 only if every promise was kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from processes import HERE, WAIT_SECONDS, NotStarted, Process

from runlane import Client, Event, LiveEvent, RunlaneError, Status

TOPIC = "the old lighthouse"
SLOW = ("agent", "llm", "task")  # worth a line when they begin; the others are done at once, or ask
ANSWER = {"decision": "print", "notes": "Front page."}

started = time.monotonic()


class BrokenPromise(Exception):
    """The example did not show what it should."""


def say(text: str = "") -> None:
    """A line, at once, also into a pipe."""
    print(text, flush=True)


def tell(who: str, what: str, depth: int = 0) -> None:
    """A line about something that happened now; what is inside a step stands further right."""
    name = "  " * depth + who
    say(f"  {time.monotonic() - started:5.1f} s  {name:<16}  {what}")


class Story:
    """The stream of one run: each event as a line, and what the demonstration needs to know of it."""

    def __init__(self) -> None:
        self.begun = Counter[str]()
        self.completed = Counter[str]()
        self.worker_id = ""
        self.paused = False
        self.changed = asyncio.Condition()
        self._last_seq = 0

    async def follow(self, client: Client, run_id: str) -> None:
        """Until the run has ended. The client reconnects by itself; no number may come twice or be left out."""
        async for event in client.stream(run_id):
            if isinstance(event, LiveEvent):
                continue  # pieces of a model's text; the whole comes with the step's end
            if event.seq != self._last_seq + 1:
                raise BrokenPromise(f"Event {event.seq} came after {self._last_seq}.")
            self._last_seq = event.seq
            async with self.changed:
                self._note(event)
                self.changed.notify_all()
            show(event)

    def _note(self, event: Event) -> None:
        match event.type:
            case "step_start":
                self.begun[event.data["path"]] += 1
            case "step_complete":
                self.completed[event.data["path"]] += 1
            case "worker_picked_up":
                self.worker_id = event.data["worker_id"]
            case "paused" | "resumed":
                self.paused = event.type == "paused"
            case _:
                pass


def show(event: Event) -> None:
    """One event as a line of the tree: a step stands under what it is in."""
    data = event.data
    path = str(data.get("path", ""))
    depth = path.count("/") // 2
    who = path.rpartition("/")[2] or "run"
    match event.type:
        case "queued":
            tell(who, "accepted: it is stored, and from now on it will end")
        case "worker_picked_up":
            tell(who, f"attempt {event.attempt}, worker {data['worker_id']}")
        case "worker_lost":
            tell(who, f"its worker is gone; {data['status']} again")
        case "step_start" if data["step_type"] in SLOW:
            tell(who, f"begins ({data['step_type']})", depth)
        case "step_complete":
            tell(who, f"done after {data['duration_seconds']:.1f} s", depth)
        case "parallel_start":
            tell(who, f"{data['branch_count']} branches at once", depth)
        case "tool_execution":
            tell("", f"calls {data['tool_name']} {data['args']}", depth + 1)
        case "tool_result":
            tell("", f"gets {data['preview']}", depth + 1)
        case "final" if path:
            tell("", f"says: {data['response']}", depth + 1)
        case "routing_decision":
            tell(who, f"says {data['decision']}: on to {data['target_step_id']}", depth)
        case "switch_decision":
            tell(who, f"{data['value']}: on to {data['target_step_id']}", depth)
        case "human_input_required":
            tell(who, f"asks: {data['prompt']}", depth)
        case "paused":
            tell(who, "paused: it waits and holds no worker and no connection")
        case "resumed":
            tell(who, "somebody answered")
        case "done":
            tell(who, str(data["status"]))
        case _:
            pass  # `runlane runs tail` shows them all


async def start(client: Client) -> tuple[str, Story, asyncio.Task[None]]:
    """Bring the definitions, start the orchestration, and follow it from its first event on."""
    definitions = {
        folder.name: [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
        for folder in (HERE / "definitions").iterdir()
    }
    for item in (await client.sync(definitions))["items"]:
        tell("sync", f"{item['change']} {item['kind']} {item['id']}")
    accepted = await client.run_orchestration("article", TOPIC)
    story = Story()
    return accepted.run_id, story, asyncio.create_task(story.follow(client, accepted.run_id))


async def reach(story: Story, following: asyncio.Task[None], *done: str, paused: bool = False) -> None:
    """Return when these steps are done, or the run waits."""
    async with asyncio.timeout(WAIT_SECONDS), story.changed:
        await story.changed.wait_for(
            lambda: following.done() or (all(story.completed[path] for path in done) and story.paused >= paused)
        )


async def kill_its_worker(story: Story, workers: list[Process]) -> None:
    """End the process that has the run, and no other."""
    victim = next(worker for worker in workers if worker.told["worker_id"] == story.worker_id)
    say()
    tell("operator", f"kill -9 {victim.pid}: the worker dies while story is being written")
    say()
    await victim.kill()


async def check(client: Client, run_id: str, story: Story, folder: Path) -> str:
    """What was promised: nothing done again that was done, one loss, one article."""
    run = await client.get(run_id)
    if run.status is not Status.COMPLETED or run.losses != 1 or run.failures:
        raise BrokenPromise(f"The run is {run.status}, with {run.losses} losses and {run.failures} failures.")
    twice = [path for path, times in story.completed.items() if times != 1]
    if twice:
        raise BrokenPromise(f"These steps were completed more than once: {twice}")
    attempts = {step.path: step.attempt for step in await client.steps(run_id)}
    before = ("research", "drafts/0/headline", "drafts/2/caption")
    if any(attempts[path] != 1 for path in before) or attempts["drafts/1/story"] != 2:
        raise BrokenPromise(f"Steps were made in these attempts: {attempts}")
    printed = list((folder / "published").iterdir())
    if [str(file.relative_to(folder)) for file in printed] != [run.result]:
        raise BrokenPromise(f"{run.result} was to be printed, and there is {printed}.")
    return printed[0].read_text()


async def demonstrate(folder: Path) -> None:
    server = Process(folder, "serve", "tasks:app", "--port", "0", ready="serving")
    workers = [Process(folder, "worker", "tasks:app", ready="worker_online") for _ in range(2)]
    try:
        await asyncio.gather(*(process.start() for process in (server, *workers)))
        tell("server", f"serves {server.told['url']}, pid {server.pid}")
        for worker in workers:
            tell("worker", f"{worker.told['worker_id']}, pid {worker.pid}")
        async with Client(server.told["url"]) as client:
            run_id, story, following = await start(client)
            await reach(story, following, "drafts/0/headline", "drafts/2/caption")
            await kill_its_worker(story, workers)
            await reach(story, following, paused=True)
            say()
            tell("demo", f"nobody sits here, so the demonstration answers: {ANSWER}")
            say()
            await client.resume(run_id, ANSWER)
            await asyncio.wait_for(following, WAIT_SECONDS)
            article = await check(client, run_id, story, folder)
        say()
        say(article)
        say(f"{story.completed.total()} steps, each done once; 1 worker killed, 1 branch made again, nothing lost.")
        codes = await asyncio.gather(*(process.drain() for process in (server, *workers)))
        if sorted(codes) != [-9, 0, 0]:
            raise BrokenPromise(f"The processes ended with {codes}.")
    finally:
        for process in (server, *workers):
            await process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description="An orchestration from its first step to its last.")
    parser.add_argument("--folder", type=Path, help="Keep the database and the article here, to look at them.")
    folder: Path | None = parser.parse_args().folder
    with tempfile.TemporaryDirectory(prefix="runlane-newsroom-") as temporary:
        place = (folder or Path(temporary)).resolve()
        os.environ["RUNLANE_DATABASE_URL"] = f"sqlite:///{place / 'runlane.db'}"
        say(f"Runlane on one SQLite file: {place / 'runlane.db'}")
        say()
        try:
            asyncio.run(demonstrate(place))
        except (BrokenPromise, NotStarted, RunlaneError, TimeoutError) as error:
            say(f"BROKEN: {error}")
            return 1
    if folder is not None:
        say(f"Look at it: RUNLANE_DATABASE_URL={os.environ['RUNLANE_DATABASE_URL']} runlane runs list")
    return 0


if __name__ == "__main__":
    sys.exit(main())
