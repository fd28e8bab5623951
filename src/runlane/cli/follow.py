"""Following a run: a live view on a terminal, plain lines in a pipe, JSON lines for programs.

The exit code depends on how the run ends, so that a script can wait for a run with one command.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from runlane.cli.event_text import describe_event
from runlane.cli.interrupts import run_interruptibly
from runlane.cli.run_backend import PAGE, find_run_id, open_runs
from runlane.cli.run_view import RunView, open_view
from runlane.cli.terminal import write_block, write_line
from runlane.domain.events import Event, EventType
from runlane.domain.run import Run, Status
from runlane.domain.text import dump_json
from runlane.domain.timestamps import format_timestamp
from runlane.errors import InvalidInput, NotFound, WrongState

if TYPE_CHECKING:
    from runlane.cli.run_backend import RunBackend

EXIT_FAILED: Final = 1
EXIT_CANCELLED: Final = 3
EXIT_TIMEOUT: Final = 4
EXIT_INTERRUPTED: Final = 130


def follow_run(
    given: str,
    *,
    after: int = 0,
    timeout: float | None,
    url: str | None,
    api_key: str | None,
    json: bool,
    may_ask: bool = False,
) -> int:
    """Show a run until it ends and return the exit code. With `may_ask`, its questions are asked on a terminal."""
    run_id = given

    async def watch() -> Run:
        nonlocal run_id
        async with open_runs(url, api_key) as runs:
            run_id = await find_run_id(runs, given)
            steps = (await runs.get(run_id)).has_steps
            with open_view(json=json, steps=steps) as view:
                async with asyncio.timeout(timeout):
                    await _show_events(runs, run_id, after, view, asks=steps and not json, may_ask=may_ask)
            return await runs.get(run_id)

    try:
        run = run_interruptibly(watch())
    except TimeoutError:
        write_line(f"Run {run_id} has not ended after {timeout:g} s; it continues. {_hint(run_id)}", err=True)
        return EXIT_TIMEOUT
    except KeyboardInterrupt:
        write_line(f"Run {run_id} continues. {_hint(run_id)}", err=True)
        return EXIT_INTERRUPTED
    _print_end(run, json=json)
    return exit_code(run.status)


def print_logs(given: str, *, since: int, follow: bool, url: str | None, api_key: str | None, json: bool) -> None:
    """Print the log of a run's task. An index is the number of an event less one, as in the API."""

    async def work() -> None:
        async with open_runs(url, api_key) as runs:
            run_id = await find_run_id(runs, given)
            stream = runs.stream(run_id, since) if follow else _stored_events(runs, run_id, since)
            async with aclosing(stream):
                async for event in stream:
                    if not isinstance(event, Event) or event.type != EventType.LOG:
                        continue
                    if json:
                        at = format_timestamp(event.at_us)
                        line = {"index": event.seq - 1, "at": at, "attempt": event.attempt, **event.data}
                        write_line(dump_json(line))
                    else:
                        write_block(describe_event(event))

    run_interruptibly(work())


async def _stored_events(runs: RunBackend, run_id: str, after: int) -> AsyncGenerator[Event]:
    run = await runs.get(run_id)
    while after < run.last_seq:
        events = await runs.events(run_id, after, PAGE)
        if not events:
            return
        for event in events:
            after = event.seq
            yield event


async def _show_events(runs: RunBackend, run_id: str, after: int, view: RunView, *, asks: bool, may_ask: bool) -> None:
    async with aclosing(runs.stream(run_id, after)) as stream:
        async for event in stream:
            view.show(event)
            if asks and event.type == EventType.HUMAN_INPUT_REQUIRED:
                await put_question(runs, run_id, event.data["path"], view, may_ask=may_ask)


async def put_question(runs: RunBackend, run_id: str, path: str, view: RunView, *, may_ask: bool) -> None:
    """Ask the question on the terminal, or print how to answer it. Do nothing if it has been answered already."""
    from runlane.cli.question_form import ask, describe_question, interruptible

    waits = [wait for wait in await runs.waits(run_id) if wait.kind == "human" and wait.answered_at_us is None]
    question = next((wait for wait in waits if wait.path == path), None)
    if question is None:
        return
    if not (may_ask and sys.stdin.isatty() and sys.stdout.isatty()):
        view.print_lines(describe_question(question, several=len(waits) > 1))
        return
    view.pause()
    try:
        while True:
            with interruptible():
                answer = ask(question)
            try:
                await runs.resume(run_id, answer, step=question.path)
            except InvalidInput as error:
                write_block(str(error))
                continue
            except (WrongState, NotFound) as error:
                write_line(f"The answer came too late: {error}")
            return
    except EOFError:
        write_line()
        view.print_lines(describe_question(question, several=len(waits) > 1))
    finally:
        view.resume()


def _print_end(run: Run, *, json: bool) -> None:
    if json:
        end = {"type": "result", "run_id": run.id, "status": run.status, "result": run.result, "error": run.error}
        write_line(dump_json(end))
    elif run.status is Status.COMPLETED:
        write_line(f"result  {dump_json(run.result)}")
    elif run.error:
        write_block(f"error  {run.error.get('type')}: {run.error.get('message')}", indent=7)


def exit_code(status: Status) -> int:
    """Return the exit code for the end of a run."""
    match status:
        case Status.COMPLETED:
            return 0
        case Status.CANCELLED:
            return EXIT_CANCELLED
        case _:
            return EXIT_FAILED


def _hint(run_id: str) -> str:
    return f"Follow it again: runlane runs tail {run_id}"
