"""`runlane chat`: a conversation with an agent in the terminal.

Answers are printed as they are generated; tool calls that need approval are asked in place. Ctrl-C cancels the running
turn and not the conversation. In a pipe only the answers are printed; with --json every event is a line.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.answer_printer import AnswerPrinter
from runlane.cli.backend import open_client
from runlane.cli.event_text import json_line
from runlane.cli.follow import EXIT_FAILED, exit_code, put_question
from runlane.cli.interrupts import run_interruptibly
from runlane.cli.options import ApiKey, Json, ServerUrl
from runlane.cli.terminal import read_line, write_block, write_line
from runlane.domain.events import Event, EventType
from runlane.domain.run import Status
from runlane.domain.text import dump_json
from runlane.errors import WrongState

if TYPE_CHECKING:
    from runlane.client import Client
    from runlane.domain.views import ChatPost

_LEAVE = frozenset({"/quit", "/exit"})


def chat(
    agent: Annotated[str, typer.Argument(help="The agent.", metavar="AGENT")],
    session: Annotated[str | None, typer.Option(help="Continue this conversation.")] = None,
    message: Annotated[
        str | None, typer.Option(help="Send this message and exit after the answer; - reads stdin.")
    ] = None,
    url: ServerUrl = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Chat with an agent on a server. Ctrl-C cancels the running turn, not the conversation; Ctrl-D exits.

    In a pipe, every line is a message. Exit code, for the last turn: 0 completed, 1 failed, 3 cancelled.
    """
    from runlane.cli.target import announce, server_for

    server = server_for(url, api_key)
    announce(server)
    conversation = _Conversation(agent, session, server.url, server.api_key, json=json)
    if session is not None:
        conversation.print_last_messages()
    code = 0
    for text in _messages(message):
        code = conversation.send(text)
        if code == EXIT_FAILED and not _at_terminal():
            break
    if message is None and _at_terminal() and conversation.session is not None:
        write_line(f"Continue later: runlane chat {agent} --session {conversation.session}", err=True)
    raise typer.Exit(code if message is not None or not _at_terminal() else 0)


def _messages(given: str | None) -> Iterator[str]:
    """Yield the message of the command line, or the lines of stdin."""
    if given is not None:
        yield sys.stdin.read() if given == "-" else given
        return
    while True:
        try:
            line = read_line("> ") if _at_terminal() else sys.stdin.readline()
        except (EOFError, KeyboardInterrupt):
            write_line()
            return
        if not line and not _at_terminal():
            return
        if line.strip() in _LEAVE:
            return
        if line.strip():
            yield line.strip()


def _at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


class _Conversation:
    def __init__(self, agent: str, session: str | None, url: str, api_key: str | None, *, json: bool) -> None:
        self._agent = agent
        self._url = url
        self._api_key = api_key
        self._json = json
        self.session = session

    def print_last_messages(self) -> None:
        """Check that the session exists, and print its last messages on a terminal."""

        async def read() -> None:
            async with open_client(self._url, self._api_key) as client:
                state = await client.chat_state(self.session or "")
            if _at_terminal() and not self._json:
                for message in state.messages[-2:]:
                    mark = ">" if message.role == "user" else ""
                    content = message.content if isinstance(message.content, str) else dump_json(message.content)
                    write_block(f"{mark} {content}".strip(), indent=2)

        run_interruptibly(read())

    def send(self, message: str) -> int:
        """Run one turn and return its exit code."""
        return run_interruptibly(self._turn(message))

    async def _turn(self, message: str) -> int:
        async with open_client(self._url, self._api_key) as client:
            posted = await _post(client, self._agent, message, self.session)
            self.session = posted.session_id
            printer = AnswerPrinter(sys.stdout, colours=sys.stdout.isatty(), live=sys.stdout.isatty())
            await _Turn(client, posted, printer, json=self._json).follow()
            run = await client.wait(posted.run_id)
            if self._json:
                ids = {"session_id": posted.session_id, "turn": posted.turn, "run_id": posted.run_id}
                end = {"type": "answer", **ids, "status": run.status, "answer": run.result, "error": run.error}
                write_line(dump_json(end))
            else:
                printer.end(run.result)
                _print_failure(run.status, run.error)
            return exit_code(run.status)


def _print_failure(status: Status, error: dict[str, Any] | None) -> None:
    if status is Status.FAILED and error:
        write_block(f"error  {error.get('type')}: {error.get('message')}", err=True, indent=7)
    elif status is Status.CANCELLED:
        write_line("cancelled", err=True)


async def _post(client: Client, agent: str, message: str, session: str | None) -> ChatPost:
    """Post a message. After Ctrl-C during the request, cancel the turn once its id is known."""
    posting = asyncio.ensure_future(client.chat(agent, message, session))
    try:
        return await asyncio.shield(posting)
    except asyncio.CancelledError:
        _clear_interrupt()
        posted = await posting
        await _cancel(client, posted.run_id)
        return posted


async def _cancel(client: Client, run_id: str) -> None:
    """Cancel a turn, unless it has ended."""
    with suppress(WrongState):
        await client.cancel(run_id)


def _clear_interrupt() -> None:
    """Mark a Ctrl-C, which cancelled this task, as handled."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        task.uncancel()


class _Turn:
    """One turn while it is followed. The first Ctrl-C cancels the turn and waits for its end; the second one exits."""

    def __init__(self, client: Client, posted: ChatPost, printer: AnswerPrinter, *, json: bool) -> None:
        self._client = client
        self._posted = posted
        self._printer = printer
        self._json = json
        self._after = f"{posted.turn}.0"

    async def follow(self) -> None:
        """Show the events of the turn until its end."""
        try:
            await self._show()
        except (asyncio.CancelledError, KeyboardInterrupt):
            _clear_interrupt()
            await _cancel(self._client, self._posted.run_id)
            await self._show()

    async def _show(self) -> None:
        stream = self._client.chat_stream(self._posted.session_id, self._after)
        async with aclosing(stream):
            async for event in stream:
                if event.data.get("chat_turn") != self._posted.turn:
                    continue
                if isinstance(event, Event):
                    self._after = f"{self._posted.turn}.{event.seq}"
                if self._json:
                    write_line(json_line(event))
                else:
                    self._printer.show(event)
                    if event.type == EventType.HUMAN_INPUT_REQUIRED:
                        await self._ask(event.data["path"])
                if event.type == EventType.DONE:
                    return

    async def _ask(self, path: str) -> None:
        with suppress(BrokenPipeError):
            await put_question(self._client, self._posted.run_id, path, self._printer, may_ask=True)
