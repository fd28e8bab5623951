"""An agent with tools in an orchestration: watched live, its worker killed, its questions answered.

Everything is real: an API server and two workers on a SQLite file, a Redis-compatible server for what is told live,
HTTP, SIGKILL. Only the model is scripted unless you name another, so that nothing has to be paid for. The exit code is
0 only if every promise was kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

from processes import HERE, WAIT_SECONDS, NotStarted, Process
from telling import Pen, show

from runlane import Client, Event, LiveEvent, RunlaneError, Status, WrongState
from runlane.testing import MissingBinaryError, RedisServer

TOPIC = "the old lighthouse"
SCRIPTED = "scripted"
APPROVE = {"decision": "approve"}
PRINT = {"decision": "print", "notes": "Front page."}
STORY = "drafts/1/story"
OTHERS = ("drafts/0/headline", "drafts/2/caption")
ENOUGH_CHARACTERS = 40
REAL = (
    'The model was scripted. A real one: OPENAI_API_KEY=... make run ARGS="--model openai:gpt-5-mini" '
    "(or ANTHROPIC_API_KEY and anthropic:claude-sonnet-5-5; or, without a key, OLLAMA_BASE_URL and ollama:qwen3)."
)

pen = Pen()


class BrokenPromise(Exception):
    """The example did not show what it should."""


class Story:
    """The stream of one run: each event as a line, and what the demonstration needs to know of it."""

    def __init__(self) -> None:
        self.completed = Counter[str]()
        self.answers = Counter[tuple[str, str]]()
        self.questions: list[dict[str, Any]] = []
        self.worker_id = ""
        self.paused = False
        self.changed = asyncio.Condition()
        self._last_seq = 0

    async def follow(self, client: Client, run_id: str) -> None:
        """Until the run has ended. The client reconnects by itself; no number may come twice or be left out."""
        async for event in client.stream(run_id):
            if isinstance(event, LiveEvent):
                pen.write(event)
            elif event.seq != self._last_seq + 1:
                raise BrokenPromise(f"Event {event.seq} came after {self._last_seq}.")
            else:
                self._last_seq = event.seq
                show(pen, event)
                self._note(event)
            async with self.changed:
                self.changed.notify_all()

    def _note(self, event: Event) -> None:
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


async def start(client: Client) -> tuple[str, Story, asyncio.Task[None]]:
    """Bring the definitions, start the orchestration, and follow it from its first event on."""
    definitions = {
        folder.name: [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
        for folder in (HERE / "definitions").iterdir()
    }
    for item in (await client.sync(definitions))["items"]:
        pen.tell("sync", f"{item['change']} {item['kind']} {item['id']}")
    accepted = await client.orchestrate("article", TOPIC)
    story = Story()
    return accepted.run_id, story, asyncio.create_task(story.follow(client, accepted.run_id))


async def answer(client: Client, run_id: str, story: Story) -> None:
    """Answer whatever the run asks, when it waits for nothing else: nobody sits here."""
    while True:
        async with story.changed:
            await story.changed.wait_for(lambda: story.paused and story.questions)
            questions, story.questions = story.questions, []
        for question in questions:
            options = {option for field in question["fields"] for option in field.get("options", [])}
            given = APPROVE if "approve" in options else PRINT
            pen.say()
            pen.tell("demo", f"nobody sits here, so the demonstration answers: {given}")
            pen.say()
            with contextlib.suppress(WrongState):  # somebody at the inbox was faster
                await client.resume(run_id, given, step=question["path"])


async def half_written(story: Story, following: asyncio.Task[None], live: bool) -> None:
    """Return when the other drafts are done and the story is not, or when it is too late for that."""

    def ready() -> bool:
        others = all(story.completed[path] for path in OTHERS)
        begun = not live or pen.shown(STORY) >= ENOUGH_CHARACTERS
        return bool(story.completed[STORY]) or (others and begun)

    async def wait() -> None:
        async with story.changed:
            await story.changed.wait_for(ready)

    waiting = asyncio.create_task(wait())
    await asyncio.wait([waiting, following], timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def kill_its_worker(story: Story, workers: list[Process]) -> None:
    """End the process that has the run, and no other."""
    victim = next(worker for worker in workers if worker.told["worker_id"] == story.worker_id)
    pen.say()
    pen.tell("operator", f"kill -9 {victim.pid}: the worker dies while story is being written")
    pen.say()
    await victim.kill()


async def check(client: Client, run_id: str, story: Story, folder: Path, *, scripted: bool) -> str:
    """What was promised: nothing done or paid again that was done, one photograph at most, one article."""
    run = await client.get(run_id)
    if run.status is not Status.COMPLETED:
        raise BrokenPromise(f"The run is {run.status}: {(run.error or {}).get('message', 'nobody knows why')}")
    twice = [path for path, times in story.completed.items() if times != 1]
    paid_twice = [key for key, times in story.answers.items() if times != 1]
    if twice or paid_twice:
        raise BrokenPromise(f"These were done more than once: {twice} {paid_twice}")
    if scripted:
        await check_script(client, run_id, run.losses, folder)
    printed = list((folder / "published").iterdir())
    if [str(file.relative_to(folder)) for file in printed] != [run.result]:
        raise BrokenPromise(f"{run.result} was to be printed, and there is {printed}.")
    return printed[0].read_text()


async def check_script(client: Client, run_id: str, losses: int, folder: Path) -> None:
    """What can only be said of a model whose answers are known: who was where when the worker died."""
    attempts = {step.path: step.attempt for step in await client.steps(run_id)}
    before = all(attempts[path] < attempts[STORY] for path in ("research", *OTHERS))
    if losses != 1 or not before:
        raise BrokenPromise(f"{losses} workers were lost, and steps were made in these attempts: {attempts}")
    orders = list((folder / "orders").iterdir())
    if len(orders) != 1:
        raise BrokenPromise(f"One photograph was approved, and {len(orders)} were ordered.")


async def demonstrate(folder: Path, *, scripted: bool, live: bool) -> None:
    server = Process(folder, "serve", "tasks:app", "--port", "0", ready="serving")
    workers = [Process(folder, "worker", "tasks:app", ready="worker_online") for _ in range(2)]
    pen.tell("demo", "starts an API server and two workers")
    try:
        await asyncio.gather(*(process.start() for process in (server, *workers)))
        pen.tell("server", f"serves {server.told['url']}, pid {server.pid}")
        for worker in workers:
            pen.tell("worker", f"{worker.told['worker_id']}, pid {worker.pid}")
        async with Client(server.told["url"]) as client:
            run_id, story, following = await start(client)
            answering = asyncio.create_task(answer(client, run_id, story))
            try:
                await half_written(story, following, live)
                if not following.done():
                    await kill_its_worker(story, workers)
                await asyncio.wait_for(following, WAIT_SECONDS)
            finally:
                answering.cancel()
            article = await check(client, run_id, story, folder, scripted=scripted)
        pen.say()
        pen.say(article)
        pen.say(
            f"{story.completed.total()} steps and {story.answers.total()} answers of the model, each recorded once; "
            "1 worker killed, 1 draft written again, nothing lost."
        )
        codes = await asyncio.gather(*(process.drain() for process in (server, *workers)))
        if sorted(codes) != [-9, 0, 0]:
            raise BrokenPromise(f"The processes ended with {codes}.")
    finally:
        for process in (server, *workers):
            await process.kill()


@contextlib.contextmanager
def live_events() -> Generator[bool]:
    """A Redis-compatible server between the processes, if there is one to start: it carries what is told live."""
    if "RUNLANE_REDIS_URL" in os.environ:
        yield True
        return
    with contextlib.ExitStack() as stack:
        try:
            os.environ["RUNLANE_REDIS_URL"] = stack.enter_context(RedisServer()).url
        except MissingBinaryError:
            pen.say("No Redis-compatible server is installed: texts are shown when they are whole.")
        yield "RUNLANE_REDIS_URL" in os.environ


def main() -> int:
    parser = argparse.ArgumentParser(description="An agent with tools, from its first step to a printed article.")
    parser.add_argument("--folder", type=Path, help="Keep the database and the article here, to look at them.")
    parser.add_argument("--model", help="The model to ask, such as openai:gpt-5-mini; RUNLANE_DEFAULT_MODEL if empty.")
    chosen = parser.parse_args()
    model: str = chosen.model or os.environ.get("RUNLANE_DEFAULT_MODEL") or SCRIPTED
    with tempfile.TemporaryDirectory(prefix="runlane-newsroom-") as temporary, live_events() as live:
        place = (chosen.folder or Path(temporary)).resolve()
        os.environ["RUNLANE_DATABASE_URL"] = f"sqlite:///{place / 'runlane.db'}"
        os.environ["RUNLANE_DEFAULT_MODEL"] = model
        pen.say(f"Runlane on one SQLite file: {place / 'runlane.db'}")
        pen.say(f"Model: {model}")
        pen.say()
        try:
            asyncio.run(demonstrate(place, scripted=model == SCRIPTED, live=live))
        except (BrokenPromise, NotStarted, RunlaneError, TimeoutError) as error:
            pen.say(f"BROKEN: {error}")
            return 1
    if model == SCRIPTED:
        pen.say(REAL)
    if chosen.folder is not None:
        pen.say(f"Look at it: RUNLANE_DATABASE_URL={os.environ['RUNLANE_DATABASE_URL']} runlane runs list")
    return 0


if __name__ == "__main__":
    sys.exit(main())
