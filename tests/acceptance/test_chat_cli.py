"""`runlane chat` and `runlane run agent:NAME`: at a terminal, in a pipe, and for programs."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import pytest
from pydantic import SecretStr

from runlane import App, Settings
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from tests import forking
from tests.server_process import ServerProcess, command, environment, serving, write_tasks

WAIT_SECONDS = 60.0
HELPER = {
    "id": "helper",
    "model": "scripted",
    "tools": ["add", "pay"],
    "answers": [
        {"when": "Result of pay", "say": "It is paid."},
        {"when": "paid 5", "say": "It is paid."},
        {"when": "3", "say": "The sum is 3."},
        {"when": "sum", "tool": "add", "arguments": {"a": 1, "b": 2}},
        {"when": "pay", "tool": "pay", "arguments": {"amount": 5}},
        {"when": "think", "thinking": "Let me see.", "say": "I have thought about it."},
        {"when": "story", "thinking": "hm", "say": "Once upon a time. " * 20, "piece_delay_seconds": 2},
        {"when": "slow", "say": "too late", "delay_seconds": 60},
        {"when": "fail", "fail": {"code": "broken", "message": "It is broken.", "retryable": False}},
        {"say": "Hello, and welcome."},
    ],
}
NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
AMOUNT = {"type": "object", "properties": {"amount": {"type": "number"}}}
TOOLS = [
    {"name": "add", "tool_type": "python", "code": "result = args['a'] + args['b']", "input_schema": NUMBERS},
    {
        "name": "pay",
        "tool_type": "python",
        "code": "result = f\"paid {args['amount']}\"",
        "input_schema": AMOUNT,
        "requires_approval": True,
    },
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chat")


@pytest.fixture(scope="module")
def database(folder: Path) -> Mapping[str, str]:
    variables = write_tasks(folder)

    async def fill() -> None:
        async with App(Settings(database_url=SecretStr(variables["RUNLANE_DATABASE_URL"]))) as app:
            loaded = parse_bodies({"agents": [HELPER], "tools": TOOLS})
            await sync_definitions(await app.database(), "default", loaded, actor="test")

    asyncio.run(fill())
    return variables


@pytest.fixture(scope="module")
def server(folder: Path, database: Mapping[str, str]) -> Generator[ServerProcess]:
    with serving(folder, database, "dev", "tasks:app") as server:
        yield server


def runlane(folder: Path, server: ServerProcess, *arguments: str, given: str | None = None, code: int = 0) -> str:
    done = command(folder, *arguments, given=given, RUNLANE_URL=server.url)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


class Terminal:
    """A person at a terminal, with one program in front of them."""

    def __init__(self, folder: Path, server: ServerProcess, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = forking.Popen(
            [sys.executable, "-m", "runlane", *arguments, "--url", server.url],
            cwd=folder,
            env=environment(TERM="xterm", COLUMNS="160"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self.seen = ""
        self._bytes = b""
        self._read_to = 0

    def wait_for(self, text: str) -> str:
        """Wait for a string after the previous one; return the output up to it."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (found := self.seen.find(text, self._read_to)) < 0:
            assert time.monotonic() < deadline, f"{text!r} did not come:\n{self.seen}"
            self._read()
        since, self._read_to = self._read_to, found + len(text)
        return self.seen[since:found]

    def type(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())

    def leave(self) -> int:
        """Ctrl-D, and the exit code."""
        os.write(self._ours, b"\x04")
        deadline = time.monotonic() + WAIT_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            self._read()
        self._read()
        os.close(self._ours)
        return self.process.returncode

    def _read(self) -> None:
        try:
            self._bytes += os.read(self._ours, 65536)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            time.sleep(0.01)  # the other side is closed
        # Decode all of it again: what was read may end within a character, or between the two that end a line.
        self.seen = self._bytes.decode(errors="ignore").replace("\r\n", "\n")


@pytest.fixture
def terminal(folder: Path, server: ServerProcess) -> Generator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def begin(*arguments: str) -> Terminal:
        opened.append(Terminal(folder, server, *arguments))
        return opened[-1]

    yield begin
    for one in opened:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_one_message_in_a_pipe_is_one_answer(folder: Path, server: ServerProcess) -> None:
    assert runlane(folder, server, "chat", "helper", "--message", "hi") == "Hello, and welcome.\n"
    assert runlane(folder, server, "chat", "helper", given="hi\nthink\n") == (
        "Hello, and welcome.\nI have thought about it.\n"
    )
    assert "broken: It is broken." in runlane(folder, server, "chat", "helper", "--message", "fail", code=1)
    assert "unknown_definition" in runlane(folder, server, "chat", "unknown", "--message", "hi", code=1)
    assert "session_not_found" in runlane(
        folder, server, "chat", "helper", "--session", "sess_none", "--message", "hi", code=1
    )


def test_events_are_lines_for_programs_and_a_session_continues(folder: Path, server: ServerProcess) -> None:
    output = runlane(folder, server, "chat", "helper", "--message", "sum", "--json")
    lines = [json.loads(line) for line in output.splitlines()]
    end = lines[-1]
    assert (end["type"], end["status"], end["answer"], end["turn"]) == ("answer", "completed", "The sum is 3.", 1)
    assert [line["seq"] for line in lines if "seq" in line] == list(range(1, lines[-2]["seq"] + 1))
    assert [line["tool_name"] for line in lines if line["type"] == "tool_execution"] == ["add"]
    session = end["session_id"]
    again = runlane(folder, server, "chat", "helper", "--session", session, "--message", "hi", "--json")
    assert json.loads(again.splitlines()[-1])["turn"] == 2


def test_an_agent_runs_once(folder: Path, server: ServerProcess) -> None:
    output = runlane(folder, server, "run", "agent:helper", "--message", "sum", "--follow")
    assert output.endswith('result  "The sum is 3."\n')
    assert "--message TEXT" in runlane(folder, server, "run", "agent:helper", code=1)
    assert "unknown_definition" in runlane(folder, server, "run", "agent:unknown", "--message", "hi", code=1)


def test_the_live_view_of_a_run_shows_what_the_agent_writes(
    terminal: Callable[..., Terminal],
) -> None:
    watching = terminal("run", "agent:helper", "--message", "think", "--follow")
    watching.wait_for("helper: completed")
    watching.wait_for('result  "I have thought about it."')


def test_a_conversation_at_a_terminal(server: ServerProcess, terminal: Callable[..., Terminal]) -> None:
    chat = terminal("chat", "helper")
    chat.wait_for("> ")
    chat.type("hi")
    chat.wait_for("Hello, and welcome.\n")
    chat.wait_for("> ")
    chat.type("sum")
    before = chat.wait_for("The sum is 3.\n")
    assert '[add {"a":1,"b":2}]' in before
    chat.wait_for("> ")
    chat.type("fail")
    chat.wait_for("broken: It is broken.")
    chat.wait_for("> ")
    chat.type("slow")
    chat.wait_for("slow\n")
    wait_for_turn(server)
    chat.process.send_signal(signal.SIGINT)
    chat.wait_for("cancelled")
    chat.wait_for("> ")
    chat.type("think")
    chat.wait_for("I have thought about it.\n")
    chat.wait_for("> ")
    assert chat.leave() == 0
    session = re.search(r"runlane chat helper --session (sess_[0-9a-f]+)", chat.seen)
    assert session is not None
    again = terminal("chat", "helper", "--session", session[1])
    again.wait_for("> think\n")
    again.wait_for("I have thought about it.")
    again.wait_for("> ")
    assert again.leave() == 0
    assert "too late" not in chat.seen


def test_an_answer_that_began_before_its_stream_is_shown_from_the_beginning(
    folder: Path, server: ServerProcess, terminal: Callable[..., Terminal]
) -> None:
    run = json.loads(runlane(folder, server, "run", "agent:helper", "--message", "story", "--json"))["run_id"]
    # The stream of the run itself has brought pieces, so a reader that comes now is late.
    with urllib.request.urlopen(f"{server.url}/api/v2/runs/{run}/stream") as stream:
        while b'"offset":0,"text":"Once' not in stream.readline():
            pass
    watching = terminal("runs", "tail", run)
    watching.wait_for("Once upon")
    assert runlane(folder, server, "runs", "cancel", run) == f"{run}: running\n"
    watching.wait_for("cancelled")


def test_a_long_answer_is_shown_while_it_is_written(server: ServerProcess, terminal: Callable[..., Terminal]) -> None:
    chat = terminal("chat", "helper")
    chat.wait_for("> ")
    chat.type("story")
    chat.wait_for("hm")
    chat.wait_for("Once upon")
    wait_for_turn(server)
    chat.process.send_signal(signal.SIGINT)
    chat.wait_for("cancelled")
    chat.wait_for("> ")
    assert chat.leave() == 0


def wait_for_turn(server: ServerProcess) -> None:
    """Wait until a turn is running, or paused until its delayed answer is due."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        with urllib.request.urlopen(f"{server.url}/api/v2/chat") as answer:
            if json.load(answer)["sessions"][0]["status"] in ("running", "paused"):
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_tool_that_needs_a_person_asks_in_the_chat(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("chat", "helper")
    chat.wait_for("> ")
    chat.type("pay")
    asked = chat.wait_for("Decision: ")
    assert "May pay be called with these arguments?" in asked
    assert '"amount":5' in asked
    # Nothing more is asked: what an edit or a refusal needs belongs to those.
    chat.type("approve")
    chat.wait_for("It is paid.\n")
    chat.wait_for("> ")
    assert chat.leave() == 0
