"""Orchestrations on the command line: started, followed, answered, forked, by a server and by the database."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from runlane import App, Settings
from tests import forking
from tests.acceptance.api.flows import ARTICLE, PAYMENT, bring, say
from tests.server_process import ServerProcess, command, environment, serving, write_tasks

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("orchestrations")


@pytest.fixture(scope="module")
def database(folder: Path) -> Mapping[str, str]:
    variables = write_tasks(folder)

    async def fill() -> None:
        async with App(Settings(database_url=SecretStr(variables["RUNLANE_DATABASE_URL"]))) as app:
            await bring(await app.database(), ARTICLE, PAYMENT)

    asyncio.run(fill())
    return variables


@pytest.fixture(scope="module")
def server(folder: Path, database: Mapping[str, str]) -> Generator[ServerProcess]:
    with serving(folder, database, "dev", "tasks:app") as server:
        yield server


@pytest.mark.parametrize("over_http", [True, False])
def test_a_run_is_answered_read_and_forked_over_http_and_on_the_database(
    folder: Path, server: ServerProcess, database: Mapping[str, str], over_http: bool
) -> None:
    way = {"RUNLANE_URL": server.url} if over_http else database

    def output(*arguments: str, code: int = 0) -> str:
        done = command(folder, *arguments, **way)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    started = command(folder, "run", "article", "--message", "lanes", "--json", RUNLANE_URL=server.url)
    run_id = json.loads(started.stdout)["run_id"]
    deadline = time.monotonic() + WAIT_SECONDS
    while json.loads(output("runs", "show", run_id, "--json"))["status"] != "paused":
        assert time.monotonic() < deadline
    late = output("runs", "tail", run_id, "--timeout", "0.2", code=4)
    assert f"runlane runs tail {run_id}" in late
    (question,) = [item for item in json.loads(output("inbox", "--json")) if item["run_id"] == run_id]
    assert (question["prompt"], question["path"]) == ("Publish an article on lanes?", "ask")
    assert f"{run_id}\task\torchestration:article\tPublish an article on lanes?\tdecision,notes" in (
        inbox := output("inbox")
    )
    assert inbox.endswith("\tan article on lanes\n")
    assert "waits for  human  ask" in output("runs", "show", run_id)
    assert '"decision" must be one of' in output("runs", "resume", run_id, "--field", "decision=maybe", code=1)
    assert output("runs", "resume", run_id, "--field", "decision=approve", "--step", "ask") == f"{run_id}: queued\n"
    assert output("runs", "tail", run_id).endswith('completed\nresult  "approve: an article on lanes"\n')
    assert "wrong_state" in output("runs", "resume", run_id, "--answer", '{"decision": "approve"}', code=1)
    steps = json.loads(output("runs", "steps", run_id, "--json"))
    assert [(step["path"], step["outcome"], step["tries"]) for step in steps] == [
        ("draft", "done", 0), ("ask", "done", 0), ("publish", "done", 0),
    ]  # fmt: skip
    assert "publish\tprint\tdone\t" in output("runs", "steps", run_id)
    whole = json.loads(output("runs", "show", run_id, "--json"))
    # The first attempt paused, and the second one took the answer.
    assert [attempt["started_at_us"] for attempt in whole["attempts"]] == [
        whole["started_at_us"], whole["claimed_at_us"],
    ]  # fmt: skip
    assert (whole["attempt"], whole["tries"]) == (2, 1)
    assert f"{run_id}\torchestration:article\tcompleted\tdefault\t1\t" in output("runs", "list")
    assert [line for line in output("runs", "tail", run_id).splitlines() if "attempt 1 runs on" in line][1:]
    (listed,) = [run for run in json.loads(output("runs", "list", "--json")) if run["id"] == run_id]
    assert (listed["started_at_us"], listed["claimed_at_us"]) == (whole["started_at_us"], whole["claimed_at_us"])
    shown = output("runs", "show", run_id)
    assert '"decision":"approve"' in shown
    assert "       attempt  1\n" in shown
    assert "step  publish" in shown
    forked = json.loads(output("runs", "fork", run_id, "--from", "publish", "--state", '{"draft": "new"}', "--json"))
    assert output("runs", "tail", forked["run_id"]).endswith('result  "approve: new"\n')
    assert f"forked from  {run_id} at publish" in output("runs", "show", forked["run_id"])
    waiting = json.loads(
        command(folder, "run", "payment", "--input", '{"item": "tea"}', "--json", RUNLANE_URL=server.url).stdout
    )["run_id"]
    assert output("runs", "send", waiting, "payment", "--data", '{"amount": 7}').startswith(waiting)
    assert output("runs", "tail", waiting).endswith('result  "got 7 for tea"\n')


@pytest.mark.parametrize("over_http", [True, False])
def test_a_run_continues_on_the_current_version_of_its_definition(
    folder: Path, server: ServerProcess, database: Mapping[str, str], over_http: bool
) -> None:
    way = {"RUNLANE_URL": server.url} if over_http else database
    name = f"repaired-{over_http}".lower()

    async def store(*steps: dict[str, Any]) -> None:
        async with App(Settings(database_url=SecretStr(database["RUNLANE_DATABASE_URL"]))) as app:
            await bring(await app.database(), {"id": name, "steps": list(steps)})

    draft = {**say("draft", "a draft"), "next_step_id": "send"}
    send = say("send", "sent {state.draft}")
    asyncio.run(store(draft, {"id": "send", "type": "task", "task": "refuse"}))
    failed = command(folder, "run", name, "--message", "go", "--follow", "--json", RUNLANE_URL=server.url)
    assert failed.returncode == 1, failed.stderr
    run_id = json.loads(failed.stdout.splitlines()[0])["run_id"]
    asyncio.run(store({**draft, "id": "sketch"}, send))
    for words in (("retry", run_id), ("fork", run_id, "--from", "send")):
        refused = command(folder, "runs", *words, "--latest", **way)
        assert (refused.returncode, 'The step "draft" does not exist any more' in refused.stderr) == (1, True), refused
    asyncio.run(store(draft, send))
    forked = command(folder, "runs", "fork", run_id, "--from", "send", "--latest", "--json", **way)
    for repaired in (json.loads(forked.stdout)["run_id"], run_id):
        if repaired == run_id:
            assert command(folder, "runs", "retry", run_id, "--latest", **way).returncode == 0
        ended = command(folder, "runs", "tail", repaired, **way)
        assert ended.stdout.endswith('result  "sent a draft"\n'), ended


def test_following_in_a_pipe_explains_how_to_answer(folder: Path, server: ServerProcess) -> None:
    following = forking.Popen(
        [sys.executable, "-m", "runlane", "run", "article", "--message", "m", "--follow", "--url", server.url],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    seen: list[str] = []
    with following.stdout as lines:
        for line in lines:
            seen.append(line)
            if line.startswith("  answer: "):
                words = line.split()
                done = command(folder, *words[2:], RUNLANE_URL=server.url)
                assert done.returncode == 0, done.stderr
    assert following.wait(WAIT_SECONDS) == 0
    assert "ask asks: Publish an article on m?\n" in seen
    assert seen[-1] == 'result  "approve: an article on m"\n'
    assert not any("\x1b" in line for line in seen)


def test_a_person_at_a_terminal_is_asked(folder: Path, server: ServerProcess) -> None:
    ours, theirs = pty.openpty()
    watching = forking.Popen(
        [sys.executable, "-m", "runlane", "run", "article", "--message", "m", "--follow", "--url", server.url],
        cwd=folder,
        env=environment(TERM="xterm", COLUMNS="160"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    answers = [("decision: ", "maybe"), ("decision: ", "2"), ("notes (may be left empty): ", "")]
    deadline = time.monotonic() + WAIT_SECONDS
    unread = b""
    try:
        while time.monotonic() < deadline and (piece := os.read(ours, 65536)):
            seen += piece
            unread += piece
            if answers and answers[0][0].encode() in unread:
                unread = b""
                os.write(ours, f"{answers.pop(0)[1]}\n".encode())
    except OSError:
        pass  # the other side is closed
    finally:
        os.close(ours)
    text = seen.decode()
    assert watching.wait(WAIT_SECONDS) == 0, text
    assert answers == []
    assert "1. approve" in text
    assert '"decision" must be one of' in text
    assert "Article: completed" in text
    assert text.rstrip().endswith('result  "reject: an article on m"')


def test_a_name_that_is_neither_task_nor_orchestration(folder: Path, server: ServerProcess) -> None:
    done = command(folder, "run", "artcle", RUNLANE_URL=server.url)
    assert done.returncode == 1
    assert 'did you mean "article"' in done.stderr
    assert "neither a task nor an orchestration" in done.stderr
    done = command(folder, "run", "talk", "--message", "m", RUNLANE_URL=server.url)
    assert (done.returncode, "unknown_definition" in done.stderr) == (1, True)


def test_a_run_that_waits_for_a_person_is_not_logged_as_ended(folder: Path, server: ServerProcess) -> None:
    started = command(folder, "run", "article", "--message", "lanes", "--json", RUNLANE_URL=server.url)
    run_id = json.loads(started.stdout)["run_id"]
    log = folder / f"server-{server.port}.log"
    deadline = time.monotonic() + WAIT_SECONDS
    while not any("run_paused" in line and run_id in line for line in log.read_text().splitlines()):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    assert not any("run_ended" in line and run_id in line for line in log.read_text().splitlines())


def test_following_prints_the_id_of_the_run_first(folder: Path, server: ServerProcess) -> None:
    done = command(folder, "run", "talk", "--input", '{"count": 1}', "--follow", "--json", RUNLANE_URL=server.url)
    server_line, run_line = done.stderr.splitlines()
    assert server_line.startswith("Server: ")
    assert run_line == json.loads(done.stdout.splitlines()[0])["run_id"]
