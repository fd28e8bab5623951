"""`runlane chat`: a conversation with an agent in the terminal.

Answers appear as they are written; what a tool may not do without a person is asked in place. Ctrl-C stops the turn
that is at work and not the conversation. In a pipe only the answers are printed; with --json every event is a line.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from runlane.cli.follow import EXIT_FAILED, exit_code, put_question
from runlane.cli.interrupts import run_interruptibly
from runlane.cli.source import RunSource, client_of, open_source
from runlane.cli.speech import Speech, for_terminal
from runlane.cli.story import wire_line
from runlane.cli.target import announce, server_for
from runlane.cli.terminal import read_line, say_block, write_line
from runlane.domain.events import Event
from runlane.domain.run import Status
from runlane.domain.text import dump_json
from runlane.errors import WrongState

if TYPE_CHECKING:
    from runlane.client import ChatPost, Client

_LEAVE = frozenset({"/quit", "/exit"})


def talk(
    agent: str, *, session: str | None, message: str | None, url: str | None, api_key: str | None, json: bool
) -> int:
    """`runlane chat`: its exit code."""
    server = server_for(url, api_key)
    announce(server)
    chat = _Chat(agent, session, server.url, server.api_key, json=json)
    if session is not None:
        chat.greet()
    code = 0
    for said in _messages(message):
        code = chat.say(said)
        if code == EXIT_FAILED and not _at_terminal():
            break
    if message is None and _at_terminal() and chat.session is not None:
        write_line(f"Go on later: runlane chat {agent} --session {chat.session}", err=True)
    return code if message is not None or not _at_terminal() else 0


def _messages(given: str | None) -> Iterator[str]:
    """The message of the command line, or what is typed; in a pipe each line is one."""
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


class _Chat:
    def __init__(self, agent: str, session: str | None, url: str, api_key: str | None, *, json: bool) -> None:
        self._agent = agent
        self._url = url
        self._api_key = api_key
        self._json = json
        self.session = session

    def greet(self) -> None:
        """See that the session is there, and what was said last."""

        async def look() -> None:
            async with client_of(self._url, self._api_key) as client:
                state = await client.chat_state(self.session or "")
            if _at_terminal() and not self._json:
                for message in state.messages[-2:]:
                    who = ">" if message.role == "user" else ""
                    content = message.content if isinstance(message.content, str) else dump_json(message.content)
                    say_block(f"{who} {content}".strip(), indent=2)

        run_interruptibly(look())

    def say(self, message: str) -> int:
        """One turn; the exit code that its end stands for."""
        return run_interruptibly(self._turn(message))

    async def _turn(self, message: str) -> int:
        async with client_of(self._url, self._api_key) as client, open_source(self._url, self._api_key) as source:
            posted = await _post(client, self._agent, message, self.session)
            self.session = posted.session_id
            speech = for_terminal(sys.stdout, colours=sys.stdout.isatty(), live=sys.stdout.isatty())
            following = _Following(client, source, posted, speech, json=self._json)
            await following.until_done()
            run = await client.wait(posted.run_id)
            if self._json:
                about = {"session_id": posted.session_id, "turn": posted.turn, "run_id": posted.run_id}
                end = {"type": "answer", **about, "status": run.status, "answer": run.result, "error": run.error}
                write_line(dump_json(end))
            else:
                speech.end(run.result)
                self._tell_end(run.status, run.error)
            return exit_code(run.status)

    def _tell_end(self, status: Status, error: dict[str, Any] | None) -> None:
        if status is Status.FAILED and error:
            say_block(f"error  {error.get('type')}: {error.get('message')}", err=True, indent=7)
        elif status is Status.CANCELLED:
            write_line("cancelled", err=True)


async def _post(client: Client, agent: str, message: str, session: str | None) -> ChatPost:
    """Post a message. A Ctrl-C meanwhile is for the turn, which is cancelled as soon as it is known."""
    posting = asyncio.ensure_future(client.chat(agent, message, session))
    try:
        return await asyncio.shield(posting)
    except asyncio.CancelledError:
        _go_on()
        posted = await posting
        await _cancel(client, posted.run_id)
        return posted


async def _cancel(client: Client, run_id: str) -> None:
    """Cancel a turn, unless it has ended meanwhile."""
    with suppress(WrongState):
        await client.cancel(run_id)


def _go_on() -> None:
    """Take a Ctrl-C, which came as a cancellation of this task, as dealt with."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        task.uncancel()


class _Following:
    """One turn while it is watched. The first Ctrl-C cancels it, and its end is awaited; the second one leaves."""

    def __init__(self, client: Client, source: RunSource, posted: ChatPost, speech: Speech, *, json: bool) -> None:
        self._client = client
        self._source = source
        self._posted = posted
        self._speech = speech
        self._json = json
        self._after = f"{posted.turn}.0"

    async def until_done(self) -> None:
        """Show everything up to the turn's end."""
        try:
            await self._show()
        except (asyncio.CancelledError, KeyboardInterrupt):
            _go_on()
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
                    write_line(wire_line(event))
                else:
                    self._speech.show(event)
                    if event.type == "human_input_required":
                        await self._ask(event.data["path"])
                if event.type == "done":
                    return

    async def _ask(self, path: str) -> None:
        with suppress(BrokenPipeError):
            await put_question(self._source, self._posted.run_id, path, self._speech, may_ask=True)
