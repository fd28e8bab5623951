"""Starting a run and watching it: a live view on a terminal, plain lines in a pipe, JSON lines for programs.

The exit code is the run's end, so that a script can wait for a run with one command.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from runlane.cli.interrupts import run_interruptibly
from runlane.cli.show import print_json
from runlane.cli.source import RunSource, client_of, find_run_id, open_source
from runlane.cli.story import sentence
from runlane.cli.target import announce, server_for
from runlane.cli.terminal import say_block, write_line
from runlane.cli.views import View, open_view
from runlane.domain.events import Event, EventType
from runlane.domain.run import AGENT, ORCHESTRATION, Accepted, Run, Status
from runlane.domain.text import dump_json
from runlane.domain.wire import format_timestamp
from runlane.errors import InvalidInput, NotFound, UnknownDefinition, UnknownTask, WrongState

if TYPE_CHECKING:
    from runlane.client import Client

EXIT_FAILED = 1
EXIT_CANCELLED = 3
EXIT_TIMEOUT = 4
EXIT_INTERRUPTED = 130


def start_run(
    name: str,
    *,
    message: str | None,
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
    arguments = read_object(given, "--input", "the arguments by name")
    server = server_for(url, api_key)
    announce(server)
    options = {
        "priority": priority,
        "ordering_key": key,
        "delay_seconds": delay,
        "hold": hold,
        "idempotency_key": idempotency_key,
    }

    async def start() -> str:
        async with client_of(server.url, server.api_key) as client:
            accepted = await _accepted(client, name, message, arguments, options)
        if not follow:
            if json:
                print_json(asdict(accepted))
            else:
                write_line(f"{accepted.run_id}: {accepted.status}")
        else:
            # Whatever becomes of this process, the run can be found again.
            write_line(accepted.run_id, err=True)
        return accepted.run_id

    run_id = run_interruptibly(start())
    if not follow:
        return 0
    return tail_run(run_id, after=0, timeout=timeout, url=server.url, api_key=server.api_key, json=json, may_ask=True)


async def _accepted(
    client: Client, name: str, message: str | None, arguments: dict[str, Any], options: dict[str, Any]
) -> Accepted:
    """A run of the task of this name; of the orchestration if there is a message, or no such task.

    `agent:NAME` and `orchestration:NAME` say which it is.
    """
    if name.startswith(AGENT):
        if not message:
            raise InvalidInput(f"What is {name} to be asked? Say it: runlane run {name} --message TEXT")
        return await client.ask(name.removeprefix(AGENT), message, arguments, **options)
    if name.startswith(ORCHESTRATION):
        return await client.orchestrate(name.removeprefix(ORCHESTRATION), message or "", arguments, **options)
    if message is not None:
        return await client.orchestrate(name, message, arguments, **options)
    try:
        return await client.enqueue(name, arguments, **options)
    except UnknownTask as no_task:
        try:
            return await client.orchestrate(name, "", arguments, **options)
        except UnknownDefinition as no_orchestration:
            raise NotFound(
                f'"{name}" is neither a task nor an orchestration of this server. {no_task} {no_orchestration}'
            ) from None


def tail_run(
    given: str,
    *,
    after: int,
    timeout: float | None,
    url: str | None,
    api_key: str | None,
    json: bool,
    may_ask: bool = False,
) -> int:
    """`runlane runs tail`: its exit code. Somebody at a terminal is asked what the run asks, if `may_ask`."""

    run_id = given

    async def watch() -> Run:
        nonlocal run_id
        async with open_source(url, api_key) as source:
            run_id = await find_run_id(source, given)
            steps = (await source.get(run_id)).has_steps
            with open_view(json=json, steps=steps) as view:
                async with asyncio.timeout(timeout):
                    await _show_all(source, run_id, after, view, asks=steps and not json, may_ask=may_ask)
            return await source.get(run_id)

    try:
        run = run_interruptibly(watch())
    except TimeoutError:
        write_line(f"Run {run_id} has not ended after {timeout:g} s; it goes on. {_again(run_id)}", err=True)
        return EXIT_TIMEOUT
    except KeyboardInterrupt:
        write_line(f"Run {run_id} goes on. {_again(run_id)}", err=True)
        return EXIT_INTERRUPTED
    _print_end(run, json=json)
    return exit_code(run.status)


def show_logs(given: str, *, since: int, follow: bool, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane runs logs`: what the task said. An index is an event's number less one, as in the API."""

    async def work() -> None:
        async with open_source(url, api_key) as source:
            run_id = await find_run_id(source, given)
            stream = source.stream(run_id, since) if follow else _stored(source, run_id, since)
            async with aclosing(stream):
                async for event in stream:
                    if not isinstance(event, Event) or event.type != EventType.LOG:
                        continue
                    if json:
                        at = format_timestamp(event.at_us)
                        line = {"index": event.seq - 1, "at": at, "attempt": event.attempt, **event.data}
                        write_line(dump_json(line))
                    else:
                        say_block(sentence(event))

    run_interruptibly(work())


async def _stored(source: RunSource, run_id: str, after: int) -> AsyncGenerator[Event]:
    run = await source.get(run_id)
    while after < run.last_seq:
        events = await source.events(run_id, after, 1000)
        if not events:
            return
        for event in events:
            after = event.seq
            yield event


async def _show_all(source: RunSource, run_id: str, after: int, view: View, *, asks: bool, may_ask: bool) -> None:
    async with aclosing(source.stream(run_id, after)) as stream:
        async for event in stream:
            view.show(event)
            if asks and event.type == "human_input_required":
                await put_question(source, run_id, event.data["path"], view, may_ask=may_ask)


async def put_question(source: RunSource, run_id: str, path: str, view: View, *, may_ask: bool) -> None:
    """Ask whoever sits here, or say how to answer; nothing if somebody has answered already."""
    from runlane.cli.ask import ask, describe_question, interruptible

    open_ones = [wait for wait in await source.waits(run_id) if wait.kind == "human" and wait.answered_at_us is None]
    question = next((wait for wait in open_ones if wait.path == path), None)
    if question is None:
        return
    if not (may_ask and sys.stdin.isatty() and sys.stdout.isatty()):
        view.say(describe_question(question, several=len(open_ones) > 1))
        return
    view.pause()
    try:
        while True:
            with interruptible():
                answer = ask(question)
            try:
                await source.resume(run_id, answer, question.path)
            except InvalidInput as error:
                say_block(str(error))
                continue
            except (WrongState, NotFound) as error:
                write_line(f"The answer came too late: {error}")
            return
    except EOFError:
        write_line()
        view.say(describe_question(question, several=len(open_ones) > 1))
    finally:
        view.go_on()


def _print_end(run: Run, *, json: bool) -> None:
    if json:
        end = {"type": "result", "run_id": run.id, "status": run.status, "result": run.result, "error": run.error}
        write_line(dump_json(end))
    elif run.status is Status.COMPLETED:
        write_line(f"result  {dump_json(run.result)}")
    elif run.error:
        say_block(f"error  {run.error.get('type')}: {run.error.get('message')}", indent=7)


def exit_code(status: Status) -> int:
    """What a run's end means to a script."""
    match status:
        case Status.COMPLETED:
            return 0
        case Status.CANCELLED:
            return EXIT_CANCELLED
        case _:
            return EXIT_FAILED


def _again(run_id: str) -> str:
    return f"Watch it again: runlane runs tail {run_id}"


def read_object(given: str | None, option: str, what: str) -> dict[str, Any]:
    """The JSON object of an option; @FILE reads a file, - reads stdin."""
    if given is None:
        return {}
    value, text, where = _read_json(given, option)
    if not isinstance(value, dict):
        raise InvalidInput(f"{where} must be an object with {what}, not {text[:60]!r}.")
    return value  # pyright: ignore[reportUnknownVariableType]


def read_value(given: str, option: str) -> Any:
    """The JSON value of an option; @FILE reads a file, - reads stdin."""
    return _read_json(given, option)[0]


def _read_json(given: str, option: str) -> tuple[Any, str, str]:
    if given == "-":
        text, where = sys.stdin.read(), "stdin"
    elif given.startswith("@"):
        where = given[1:]
        try:
            text = Path(where).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{option} {given}: {error}. Form: {option} @file.json") from None
    else:
        text, where = given, option
    try:
        return orjson.loads(text), text, where
    except orjson.JSONDecodeError as error:
        raise InvalidInput(
            f'{where} is not JSON: {error}. Give it as {option} \'{{"name": "value"}}\', {option} @file.json, '
            f"or {option} - to read it from stdin."
        ) from None
