"""Starting a run and watching it: a live view on a terminal, plain lines in a pipe, JSON lines for programs.

The exit code is the run's end, so that a script can wait for a run with one command.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from runlane.api.frame import iso
from runlane.cli.show import print_json
from runlane.cli.source import Source, open_source
from runlane.cli.story import plain_line, sentence, wire_line
from runlane.errors import InvalidInput
from runlane.model.event import Event, EventType
from runlane.model.run import Run, Status
from runlane.model.text import dump_json

if TYPE_CHECKING:
    from runlane.client import LiveEvent

DEFAULT_URL = "http://127.0.0.1:8765"
EXIT_FAILED = 1
EXIT_CANCELLED = 3
EXIT_TIMEOUT = 4
EXIT_INTERRUPTED = 130

Show = Callable[["Event | LiveEvent"], None]


def start_run(
    task: str,
    *,
    given: str | None,
    follow: bool,
    priority: int,
    key: str | None,
    delay: float,
    hold: bool,
    idempotency_key: str | None,
    timeout: float | None,
    url: str | None,
    api_key: str | None,
    json: bool,
) -> int:
    """`runlane run`: its exit code."""
    arguments = _read_input(given)
    where = url or DEFAULT_URL

    async def start() -> str:
        from runlane.client import Client

        async with Client(where, api_key) as client:
            accepted = await client.run(
                task,
                arguments,
                priority=priority,
                ordering_key=key,
                delay_seconds=delay,
                hold=hold,
                idempotency_key=idempotency_key,
            )
        if not follow:
            if json:
                print_json(asdict(accepted))
            else:
                print(f"{accepted.run_id}: {accepted.status}")
        return accepted.run_id

    run_id = asyncio.run(start())
    if not follow:
        return 0
    return tail_run(run_id, after=0, timeout=timeout, url=where, api_key=api_key, json=json)


def tail_run(
    run_id: str, *, after: int, timeout: float | None, url: str | None, api_key: str | None, json: bool
) -> int:
    """`runlane runs tail`: its exit code."""

    async def watch() -> Run:
        async with open_source(url, api_key) as source:
            with _view(json=json) as show:
                async with asyncio.timeout(timeout):
                    await _show_all(source, run_id, after, show)
            return await source.get(run_id)

    try:
        run = asyncio.run(watch())
    except TimeoutError:
        print(f"Run {run_id} has not ended after {timeout:g} s; it goes on. {_again(run_id)}", file=sys.stderr)
        return EXIT_TIMEOUT
    except KeyboardInterrupt:
        print(f"Run {run_id} goes on. {_again(run_id)}", file=sys.stderr)
        return EXIT_INTERRUPTED
    _print_end(run, json=json)
    return _exit_code(run.status)


def show_logs(run_id: str, *, since: int, follow: bool, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane runs logs`: what the task said. An index is an event's number less one, as in the API."""

    async def work() -> None:
        async with open_source(url, api_key) as source:
            stream = source.stream(run_id, since) if follow else _stored(source, run_id, since)
            async with aclosing(stream):
                async for event in stream:
                    if not isinstance(event, Event) or event.type != EventType.LOG:
                        continue
                    if json:
                        line = {"index": event.seq - 1, "at": iso(event.at_us), "attempt": event.attempt, **event.data}
                        print(dump_json(line), flush=True)
                    else:
                        print(sentence(event), flush=True)

    asyncio.run(work())


async def _stored(source: Source, run_id: str, after: int) -> AsyncGenerator[Event]:
    run = await source.get(run_id)
    while after < run.last_seq:
        events = await source.events(run_id, after, 1000)
        if not events:
            return
        for event in events:
            after = event.seq
            yield event


async def _show_all(source: Source, run_id: str, after: int, show: Show) -> None:
    async with aclosing(source.stream(run_id, after)) as stream:
        async for event in stream:
            show(event)


@contextmanager
def _view(*, json: bool) -> Generator[Show]:
    if json:
        yield lambda event: print(wire_line(event), flush=True)
    elif sys.stdout.isatty():
        yield from _live_view()
    else:
        yield _print_plain


def _print_plain(event: Event | LiveEvent) -> None:
    line = plain_line(event)
    if line is not None:
        print(line, flush=True)


def _live_view() -> Generator[Show]:
    """Events scroll by; a bar below them moves with the run's progress and begins again with each attempt."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("waiting", total=None, note="")

        def show(event: Event | LiveEvent) -> None:
            if isinstance(event, Event):
                style = {"log": "default", "done": "bold", "attempt_failed": "red", "worker_lost": "red"}
                said = escape(plain_line(event) or "")
                progress.console.print(f"[{style.get(event.type, 'dim')}]{said}[/]", highlight=False)
                if event.type == EventType.PICKED_UP:
                    progress.update(bar, description=f"attempt {event.attempt}", total=None, completed=0, note="")
            elif (line := plain_line(event)) is not None:
                progress.console.print(f"[dim]{escape(line)}[/]", highlight=False)
            elif isinstance(event.data.get("progress"), int | float):
                note = escape(str(event.data.get("note") or ""))
                progress.update(bar, total=1.0, completed=float(event.data["progress"]), note=note)

        yield show


def _print_end(run: Run, *, json: bool) -> None:
    if json:
        end = {"type": "result", "run_id": run.id, "status": run.status, "result": run.result, "error": run.error}
        print(dump_json(end), flush=True)
    elif run.status is Status.COMPLETED:
        print(f"result  {dump_json(run.result)}", flush=True)
    elif run.error:
        print(f"error  {run.error.get('type')}: {run.error.get('message')}", flush=True)


def _exit_code(status: Status) -> int:
    match status:
        case Status.COMPLETED:
            return 0
        case Status.CANCELLED:
            return EXIT_CANCELLED
        case _:
            return EXIT_FAILED


def _again(run_id: str) -> str:
    return f"Watch it again: runlane runs tail {run_id}"


def _read_input(given: str | None) -> dict[str, Any]:
    if given is None:
        return {}
    if given == "-":
        text, where = sys.stdin.read(), "stdin"
    elif given.startswith("@"):
        where = given[1:]
        try:
            text = Path(where).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"--input {given}: {error}. Form: --input @file.json") from None
    else:
        text, where = given, "--input"
    try:
        value: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(
            f'{where} is not JSON: {error}. Give an object with arguments by name: --input \'{{"name": "value"}}\', '
            "--input @file.json, or --input - to read it from stdin."
        ) from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{where} must be an object with the task's arguments by name, not {text[:60]!r}.")
    return value  # pyright: ignore[reportUnknownVariableType]
