"""Text of tenants, models and tools cannot act on the terminal of the person who reads it, nor style a table."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import pty
import re
import signal
import sys
import tempfile
import termios
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

import runlane.cli
from runlane.cli import main
from tests.cli_commands import leaf_commands
from tests.server_process import ServerProcess, environment, serving

WAIT_SECONDS = 60
NOWHERE: Mapping[str, str] = {}
# Loaded once, for all commands.
LOADED = [
    importlib.import_module(name)
    for name in (
        *(f"runlane.cli.{module.name}" for module in pkgutil.iter_modules(runlane.cli.__path__)),
        *("runlane.client", "rich.live", "rich.progress", "rich.table"),
    )
]
# A window title, the clipboard, a colour, C1's CSI, a reversal, an isolate, DEL, a hidden space, a tag, rich's markup.
EVIL = "<\x1b]0;owned\x07\x1b]52;c;bHM=\x1b\\\x1b[7777m\x9b7777m\u202e\u2066\x7f\x85\u200b\U000e0041[/][bold]:skull:>"
# Ordering keys and names are refused with C0 and DEL in them.
NAME = re.sub("[\x00-\x1f\x7f]", "", EVIL)
# What the command line may write itself: line ends and tabs, and at a terminal colours and cursor movements.
OWN = re.compile(r"\x1b\[\??(?!7777)[0-9;]*[A-Za-z]|[\n\r\t]")
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]")

TASKS = f"""
import asyncio
from runlane import App, Context, Fail

EVIL = {EVIL!r}
app = App()

@app.task("talk")
async def talk(ctx: Context, text: str) -> str:
    await ctx.log(EVIL, **{{EVIL: EVIL}})
    await ctx.progress(0.5, EVIL)
    return EVIL

@app.task("refuse", max_attempts=1)
async def refuse(ctx: Context) -> None:
    raise Fail(EVIL)

@app.task("crash", max_attempts=1)
async def crash(ctx: Context) -> None:
    raise ValueError(EVIL + "\\n" + EVIL)
"""
TOOL = {
    "name": "lookup",
    "tool_type": "python",
    "code": f"raise ValueError({EVIL!r})",
    "description": EVIL,
    "input_schema": {"type": "object", "properties": {"a": {"type": "string", "description": EVIL}}},
}
HELPER = {
    "id": "helper",
    "name": f"Helper {EVIL}",
    "description": EVIL,
    "model": "scripted",
    "tools": ["lookup"],
    "answers": [
        {"when": EVIL[:12], "thinking": EVIL, "say": f"Answer {EVIL}"},
        {"when": "use", "thinking": EVIL, "tool": "lookup", "arguments": {"a": EVIL}},
        {"when": "fail", "fail": {"code": "broken", "message": EVIL, "retryable": False}},
        {"say": f"Hello {EVIL}"},
    ],
}
ARTICLE = {
    "id": "article",
    "name": f"Article {EVIL}",
    "description": EVIL,
    "steps": [
        {
            "id": "draft",
            "name": f"Draft {EVIL}",
            "type": "print",
            "print_content": EVIL,
            "output_key": "draft",
            "next_step_id": "ask",
        },
        {
            "id": "ask",
            "name": f"Ask {EVIL}",
            "type": "human",
            "human_prompt": f"Prompt {EVIL}",
            "human_fields": [
                {"name": "decision", "type": "select", "label": f"Label {EVIL}", "options": ["yes", f"no {EVIL}"]}
            ],
            "output_key": "answer",
        },
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "tasks.py").write_text(TASKS)
    write_definitions(folder / "definitions")
    return folder


@pytest.fixture(scope="module")
def database(folder: Path) -> Mapping[str, str]:
    return {"RUNLANE_DATABASE_URL": f"sqlite:///{folder / 'runlane.db'}"}


@pytest.fixture(scope="module")
def server(folder: Path, database: Mapping[str, str]) -> Generator[ServerProcess]:
    with serving(folder, database, "dev", "tasks:app") as server:
        yield server


def write_definitions(folder: Path) -> Path:
    for kind, name, body in (
        ("orchestrations", "article", ARTICLE),
        ("agents", "helper", HELPER),
        ("tools", "lookup", TOOL),
    ):
        (folder / kind).mkdir(parents=True)
        (folder / kind / f"{name}.json").write_text(json.dumps(body))
    return folder


def harmless(text: str, *, at_terminal: bool = False) -> str:
    """Return the text, after checking that it contains no control characters but those that the command line writes."""
    left = OWN.sub("", text) if at_terminal else re.sub(r"[\n\t]", "", text)
    found = UNSAFE.search(left)
    assert found is None, f"{found[0]!r} in {text!r}"
    return text


def call(
    folder: Path,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    typed: Sequence[str] | None,
    given: str = "",
) -> tuple[int, str, str]:
    """Run a command in a fork of this process, which has loaded everything: its exit code, stdout and stderr.

    With `typed`, its three streams are a terminal; each pair in it is a string to wait for and the line to type then.
    """
    with warnings.catch_warnings(), tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as errors:
        warnings.simplefilter("ignore", DeprecationWarning)
        stdin.write(given.encode())
        stdin.seek(0)
        ours, theirs = os.pipe() if typed is None else pty.openpty()
        if typed is not None:
            # A prompt that is longer than a line is scrolled, and its beginning is not shown.
            termios.tcsetwinsize(theirs, (50, 400))
        child = os.fork()
        if child == 0:
            streams = (stdin.fileno(), theirs, errors.fileno()) if typed is None else (theirs, theirs, theirs)
            _become(folder, arguments, variables, streams)
        os.close(theirs)
        try:
            out = _read(ours, list(zip((typed or ())[::2], (typed or ())[1::2], strict=True)))
        finally:
            os.close(ours)
            _, status = os.waitpid(child, 0)
        errors.seek(0)
        return os.waitstatus_to_exitcode(status), out, errors.read().decode()


def _become(folder: Path, arguments: Sequence[str], variables: Mapping[str, str], streams: Sequence[int]) -> NoReturn:
    code = 70
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WAIT_SECONDS)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment(TERM="xterm-256color", COLUMNS="400", **variables))
        sys.argv = ["runlane", *arguments]
        sys.path.insert(0, "")
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _read(ours: int, typed: list[tuple[str, str]]) -> str:
    seen = b""
    try:
        while piece := os.read(ours, 65536):
            seen += piece
            while typed and typed[0][0].encode() in seen:
                os.write(ours, f"{typed.pop(0)[1]}\n".encode())
    except OSError:
        pass  # the other side of a terminal is closed
    return seen.decode()


def in_a_pipe(
    folder: Path, *arguments: str, code: int | None = 0, given: str = "", way: Mapping[str, str] = NOWHERE
) -> str:
    ended, out, errors = call(folder, arguments, way, None, given)
    assert "Traceback (most" not in errors, errors
    assert ended >= 0, f"{arguments} did not end"
    assert code is None or ended == code, f"{arguments} ended with {ended}: {out + errors}"
    harmless(errors)
    return harmless(out)


def at_a_terminal(folder: Path, *arguments: str, typed: Sequence[str] = (), way: Mapping[str, str] = NOWHERE) -> str:
    """Return what a person sees."""
    ended, text, _ = call(folder, arguments, way, typed)
    assert ended >= 0, f"{arguments} did not end: {text}"
    return harmless(text, at_terminal=True)


@pytest.fixture(scope="module")
def runs(folder: Path, server: ServerProcess) -> Mapping[str, str]:
    """Runs that carry hostile text in each of their parts, by what they are."""

    def started(*arguments: str) -> str:
        output = in_a_pipe(folder, "run", *arguments, "--json", way={"RUNLANE_URL": server.url})
        return str(json.loads(output)["run_id"])

    given = json.dumps({"text": EVIL})
    found = {
        "talk": started("talk", "--input", given, "--key", NAME),
        "refuse": started("refuse"),
        "crash": started("crash"),
        "article": started("article", "--message", EVIL),
        "agent": started("agent:helper", "--message", f"use {EVIL}"),
    }
    wanted = {"completed", "failed", "paused"}
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        listed = json.loads(in_a_pipe(folder, "runs", "list", "--json", way={"RUNLANE_URL": server.url}))
        if {run["status"] for run in listed} <= wanted:
            return found
        assert time.monotonic() < deadline, listed


def test_runs_in_pipes_and_at_terminals(
    folder: Path, server: ServerProcess, database: Mapping[str, str], runs: Mapping[str, str]
) -> None:
    for way, json_too in (({"RUNLANE_URL": server.url}, ()), (database, ("--json",))):
        for run in runs.values():
            in_a_pipe(folder, "runs", "show", run, *json_too, way=way)
        in_a_pipe(folder, "runs", "list", *json_too, way=way)
        in_a_pipe(folder, "runs", "steps", runs["article"], *json_too, way=way)
        in_a_pipe(folder, "runs", "steps", runs["agent"], *json_too, way=way)
        in_a_pipe(folder, "runs", "logs", runs["talk"], *json_too, way=way)
        in_a_pipe(folder, "inbox", *json_too, way=way)
        for run in ("talk", "refuse", "crash", "agent"):
            in_a_pipe(folder, "runs", "tail", runs[run], *json_too, code=None, way=way)
        in_a_pipe(folder, "runs", "tail", runs["article"], "--timeout", "0.5", *json_too, code=4, way=way)
    listed = at_a_terminal(folder, "runs", "list", way=database)
    # A long cell is folded.
    assert "[/][bold]:skull:>" in re.sub(r"\s", "", listed)
    assert "Prompt" in at_a_terminal(folder, "inbox", way=database)
    for run in runs.values():
        at_a_terminal(folder, "runs", "show", run, way=database)
        at_a_terminal(folder, "runs", "tail", run, "--timeout", "2", way={"RUNLANE_URL": server.url})
    at_a_terminal(folder, "runs", "steps", runs["agent"], way=database)
    at_a_terminal(folder, "runs", "logs", runs["talk"], way=database)
    values = json.loads(in_a_pipe(folder, "runs", "show", runs["talk"], "--json", way=database))
    assert values["result"] == EVIL
    assert values["ordering_key"] == NAME


def test_changes_of_runs(folder: Path, server: ServerProcess, runs: Mapping[str, str]) -> None:
    way = {"RUNLANE_URL": server.url}
    for verb in ("cancel", "retry", "approve", "release"):
        in_a_pipe(folder, "runs", verb, f"run_{EVIL[1:]}", code=1, way=way)
    in_a_pipe(folder, "runs", "priority", EVIL, "5", code=1, way=way)
    in_a_pipe(folder, "runs", "send", runs["article"], EVIL, "--data", "1", code=None, way=way)
    in_a_pipe(folder, "runs", "fork", runs["article"], "--from", EVIL, code=1, way=way)
    in_a_pipe(folder, "runs", "resume", runs["article"], "--field", f"decision={EVIL}", code=1, way=way)
    in_a_pipe(folder, "run", EVIL, "--message", EVIL, code=1, way=way)
    in_a_pipe(folder, "run", "refuse", "--follow", code=1, way=way)
    assert "Refused" not in at_a_terminal(folder, "run", "refuse", "--follow", way=way)
    asked = at_a_terminal(folder, "run", "article", "--message", EVIL, "--follow", typed=("Label", "yes"), way=way)
    assert "Label <\\u001b]0;owned" in asked
    again = in_a_pipe(folder, "run", "article", "--message", EVIL, "--json", way=way)
    run = json.loads(again)["run_id"]
    in_a_pipe(folder, "runs", "tail", run, "--timeout", "1", code=4, way=way)
    answered = at_a_terminal(folder, "runs", "resume", run, typed=("Label", "bad", "must be one of", "yes"), way=way)
    assert "queued" in answered


def test_a_chat_whose_pieces_split_the_sequences(folder: Path, server: ServerProcess) -> None:
    way = {"RUNLANE_URL": server.url}
    for message in ("hello", f"use {EVIL}", "use", "fail"):
        in_a_pipe(folder, "chat", "helper", "--message", message, code=None, way=way)
        in_a_pipe(folder, "chat", "helper", "--message", message, "--json", code=None, way=way)
    seen = at_a_terminal(folder, "chat", "helper", typed=("> ", "use", "Answer", "/quit"), way=way)
    assert "lookup failed" in seen
    assert "Answer <\\u001b]0;owned" in seen
    session = re.search(r"--session (\S+)", seen)
    assert session is not None
    at_a_terminal(folder, "chat", "helper", "--session", session[1], typed=("> ", "/quit"), way=way)


def test_operating_commands(folder: Path, database: Mapping[str, str], runs: Mapping[str, str]) -> None:
    key = in_a_pipe(folder, "keys", "create", EVIL, "--role", "viewer", "--json", way=database)
    in_a_pipe(folder, "tenants", "create", "acme", "--name", EVIL, code=None, way=database)
    for arguments in (
        ("keys", "list"),
        ("tenants", "list"),
        ("tenants", "set", "acme", "--name", EVIL + "2"),
        ("tenants", "delete", "acme"),
        ("roles", "list"),
        ("roles", "set", "reader", "--permissions", "runs:read"),
        ("roles", "delete", "reader"),
        ("audit", "list"),
        ("dead-letters", "list"),
        ("dead-letters", "show", runs["crash"]),
        ("definitions", "list", "agents"),
        ("definitions", "show", "agents", "helper"),
        ("definitions", "versions", "agents", "helper"),
        ("definitions", "used-by", "tools", "lookup"),
        ("workers", "--all"),
        ("lanes", "list"),
        ("lanes", "set", "default", "--kinds", EVIL),
        ("limits", "list"),
        ("limits", "set", EVIL, "--in-flight", "3"),
        ("limits", "reset", EVIL),
        ("usage", "--group", "agent"),
        ("secrets", "list"),
        ("secrets", "used-by", EVIL),
        ("secrets", "rotate"),
        ("secrets", "delete", EVIL),
        ("doctor",),
        ("db", "current"),
        ("db", "size"),
        ("db", "upgrade"),
    ):
        in_a_pipe(folder, *arguments, code=None, way=database)
        in_a_pipe(folder, *arguments, "--json", code=None, way=database)
    listed = ("keys", "tenants", "audit", "dead-letters", "lanes")
    for arguments in ((name, "list") for name in listed):
        at_a_terminal(folder, *arguments, way=database)
    in_a_pipe(folder, "keys", "revoke", json.loads(key)["id"], way=database)
    in_a_pipe(folder, "secrets", "set", "TOKEN", given="x", code=None, way=database)
    in_a_pipe(folder, "secrets", "new-key")


def test_operations(folder: Path, server: ServerProcess, runs: Mapping[str, str]) -> None:
    named = ("--settings", json.dumps({"name": EVIL}))
    for arguments in (
        ("runs", "count", "--task", EVIL),
        ("runs", "tag", runs["crash"], "--add", "nightly"),
        ("runs", "tag", runs["crash"], "--add", EVIL),
        ("links", "create", runs["article"], EVIL, "--person", EVIL, "--answer", EVIL),
        ("links", "list", "--run", EVIL),
        ("links", "revoke", EVIL),
        ("events", "send", "order.paid", "--data", json.dumps({"text": EVIL})),
        ("events", "send", EVIL),
        ("events", "list", "--name", EVIL),
        ("events", "show", EVIL),
        ("events", "outcomes", EVIL),
        ("triggers", "outcomes", EVIL),
        ("triggers", "replay", EVIL, "--from", EVIL),
        ("webhook-sources", "set", EVIL, "--verifier", "bearer"),
        ("webhook-sources", "list"),
        ("webhook-sources", "show", EVIL),
        ("webhook-sources", "token", EVIL),
        ("webhook-sources", "delete", EVIL),
        ("schedules", "create", "nightly", "--task", "crash", "--every", "3600", *named),
        ("schedules", "list"),
        ("schedules", "show", "nightly"),
        ("schedules", "show", EVIL),
        ("schedules", "set", "nightly", *named),
        ("schedules", "pause", "nightly", "--reason", EVIL),
        ("schedules", "resume", EVIL),
        ("schedules", "trigger", EVIL),
        ("schedules", "backfill", EVIL, "--from", EVIL, "--to", EVIL),
        ("schedules", "next", EVIL),
        ("schedules", "preview", "--cron", EVIL),
        ("schedules", "firings", EVIL),
        ("schedules", "delete", EVIL),
        ("admin", "workers"),
        ("admin", "scaling", "--lanes", EVIL),
        ("lanes", "unassign", "default", EVIL),
        ("lanes", "delete", EVIL),
        ("lanes", "hold", "default", "--reason", EVIL, "--minutes", "0.001"),
        ("lanes", "holds", "default"),
        ("flow-control", "list", "--target", EVIL),
        ("concurrency-limits", "list"),
        ("concurrency-limits", "set", EVIL, "1"),
        ("concurrency-limits", "delete", EVIL),
        ("quotas", "list"),
        ("quotas", "set", EVIL, "1"),
        ("webhooks", "create", "https://example.com/hook", "--description", EVIL),
        ("webhooks", "list"),
        ("webhooks", "show", EVIL),
        ("webhooks", "set", EVIL, "--rate", "1"),
        ("webhooks", "enable", EVIL, "--held", "send"),
        ("webhooks", "disable", EVIL),
        ("webhooks", "rotate", EVIL),
        ("webhooks", "secret", EVIL),
        ("webhooks", "test", EVIL),
        ("webhooks", "deliveries"),
        ("webhooks", "delivery", EVIL),
        ("webhooks", "replay", EVIL),
        ("webhooks", "delete", EVIL),
        ("webhooks", "types"),
        ("webhooks", "keys"),
        ("dead-letters", "groups"),
        ("dead-letters", "ack", runs["crash"], "--note", EVIL),
        ("dead-letters", "assign", runs["crash"], "--to", EVIL),
        ("dead-letters", "discard", EVIL),
        ("dead-letters", "export"),
        ("bulk", "start", "cancel", "--task", EVIL),
        ("bulk", "list"),
        ("bulk", "show", EVIL),
        ("bulk", "items", EVIL),
        ("bulk", "stop", EVIL),
    ):
        # Some are refused; what they print is harmless either way.
        in_a_pipe(folder, *arguments, code=None, way={"RUNLANE_URL": server.url})
    for arguments in (("schedules", "list"), ("dead-letters", "groups"), ("webhooks", "list")):
        at_a_terminal(folder, *arguments, way={"RUNLANE_URL": server.url})


def test_definitions(tmp_path: Path, folder: Path, server: ServerProcess, database: Mapping[str, str]) -> None:
    definitions = write_definitions(tmp_path / "definitions")
    wrong: dict[str, Any] = {"id": "wrong", "steps": [{"id": "a", "type": EVIL, "next_step_id": EVIL}], EVIL: 1}
    (definitions / "orchestrations" / "wrong.json").write_text(json.dumps(wrong))
    for json_too in ((), ("--json",)):
        in_a_pipe(tmp_path, "validate", *json_too, code=1)
        in_a_pipe(tmp_path, "sync", *json_too, code=1, way=database)
    (definitions / "orchestrations" / "wrong.json").unlink()
    in_a_pipe(tmp_path, "validate", code=None)
    in_a_pipe(tmp_path, "sync", "--dry-run", code=None, way=database)
    in_a_pipe(tmp_path, "graph", "article")
    in_a_pipe(tmp_path, "graph", "article", "--svg")
    at_a_terminal(tmp_path, "graph", "article")
    in_a_pipe(tmp_path, "schema")
    bundle = in_a_pipe(folder, "bundle", "export", way={"RUNLANE_URL": server.url})
    assert json.loads(bundle)["orchestrations"][0]["name"] == f"Article {EVIL}"
    broken = json.loads(bundle) | {"orchestrations": [wrong]}
    in_a_pipe(folder, "bundle", "import", "-", given=json.dumps(broken), code=None, way={"RUNLANE_URL": server.url})
    service = {
        "openapi": "3.1.0",
        "info": {"title": EVIL, "version": "1"},
        "servers": [{"url": "https://service.example"}],
        "paths": {f"/{EVIL}": {"get": {"operationId": EVIL, "description": EVIL}, "trace": {}}},
    }
    in_a_pipe(tmp_path, "tools", "import-openapi", "-", given=json.dumps(service), code=None)
    in_a_pipe(tmp_path, "mcp", "check", EVIL, code=1, way=database)


def test_memory(folder: Path, database: Mapping[str, str]) -> None:
    def run(*arguments: str, code: int | None = 0) -> str:
        return in_a_pipe(folder, *arguments, code=code, way=database)

    run("memory", "create-user", "ann", "--email", "ann@example.com", "--display-name", EVIL, code=None)
    run("memory", "get-user", "ann", code=None)
    vault = json.loads(run("memory", "create-vault", "notes", "--description", EVIL, "--json"))["id"]
    memory = json.loads(run("memory", "create-memory", "facts", "--vault", vault, "--json", code=None) or "{}").get(
        "id", EVIL
    )
    entry = json.loads(run("memory", "create-entry", memory, EVIL, "--json", code=None) or "{}").get("id", EVIL)
    run("memory", "put-context", memory, EVIL, code=None)
    for words in (
        ("memory", "list-vaults"), ("memory", "get-vault", vault), ("memory", "list-memories"),
        ("memory", "list-entries", memory), ("memory", "get-entry", memory, entry), ("memory", "get-context", memory),
        ("memory", "manifest", memory), ("memory", "search", memory, "owned"), ("memory", "await-commit", memory),
        ("memory", "await-consistency", memory), ("memory", "get-prompts"), ("memory", "status"),
        ("memory", "get-memory", memory), ("memory", "move-memory", memory, EVIL), ("memory", "get-tools-schema"),
        ("memory", "delete-fragment", memory, EVIL),
        ("memory", "correct-entry", memory, entry, EVIL), ("memory", "tag-entry", memory, entry, "--tag", f"a={EVIL}"),
        ("memory", "export", memory), ("memory", "reindex", memory), ("memory", "start-export", memory),
        ("memory", "read-export", EVIL), ("memory", "import", memory, EVIL), ("memory", "purge", memory),
        ("memory", "discard", memory), ("memory", "delete-entry", memory, entry),
        ("memory", "delete-memory", memory), ("memory", "delete-vault", EVIL), ("memory", "delete-all"),
    ):  # fmt: skip
        run(*words, code=None)


def test_threads_and_operators(folder: Path, database: Mapping[str, str]) -> None:
    for words in (
        ("threads", "list"), ("threads", "show", EVIL), ("threads", "state", EVIL), ("threads", "history", EVIL),
        ("threads", "delete", EVIL), ("assistants", "list"), ("assistants", "show", EVIL),
        ("assistants", "versions", EVIL), ("assistants", "delete", EVIL), ("admin", "drain", EVIL),
        ("db", "recovered", "--dry-run"), ("plan", "--runs-per-second", "1", "--run-seconds", "1"),
        ("health", "--port", "1", "--timeout-seconds", "0.1"),
    ):  # fmt: skip
        in_a_pipe(folder, *words, code=None, way=database)


def test_the_log_of_dev(folder: Path, server: ServerProcess, runs: Mapping[str, str]) -> None:
    (log,) = [file for file in folder.glob("server-*.log") if str(server.port) in file.name]
    text = log.read_text()
    assert runs["crash"] in text
    harmless(text)


def test_the_log_of_dev_at_a_terminal(tmp_path: Path) -> None:
    """Its own colours are left, and nothing else."""
    (tmp_path / "tasks.py").write_text(
        TASKS
        + """
import structlog
from runlane.cli.logs import configure_logs
configure_logs(dev=True)
log = structlog.get_logger()
log.info("colourful", **{EVIL: EVIL, "inside": [{EVIL: EVIL}], "error": ValueError(EVIL)})
try:
    raise ValueError(EVIL)
except ValueError:
    log.exception(EVIL)
import logging
logging.getLogger("library").warning(EVIL)
raise ValueError(EVIL)
"""
    )
    seen = at_a_terminal(tmp_path, "worker", "tasks:app")
    assert "Traceback" in seen
    assert "\x1b[" in seen
    assert seen.count("\\u001b]0;owned") >= 4


# Commands that print nothing of a tenant's, or print only until a signal.
SILENT = {"dev", "serve", "worker"}


def test_every_command_is_walked() -> None:
    text = Path(__file__).read_text()
    for words, _ in leaf_commands():
        called = ", ".join(f'"{word}"' for word in words)
        verb = words[-1] in ("cancel", "retry", "approve", "release") and f'"{words[-1]}"' in text
        assert words[0] in SILENT or verb or called in text, f"{' '.join(words)} is not tried with hostile text"
