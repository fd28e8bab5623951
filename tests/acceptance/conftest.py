"""Fixtures for the command line, called in a folder with an app as users call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runlane.settings import Settings
from runlane.testing import redis_for_tests
from tests import forking
from tests.acceptance.canary import Collector
from tests.harness import settings_for

TASKS = """
import asyncio, time
from runlane import App, Context, Fail

app = App()

@app.task("greet")
async def greet(ctx: Context, name: str, times: int = 1) -> dict:
    await ctx.log("greeting", name=name)
    return {"greeting": f"Hello {name}" * times}

@app.task("break", lane="fragile", max_attempts=1)
def fall(ctx: Context) -> None:
    raise ValueError("it broke")

@app.task("wait", lane="slow")
async def wait(ctx: Context, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return ctx.attempt
"""


@pytest.fixture(scope="session", autouse=True)
def forked_commands() -> None:
    """Start the process that forks commands while no event loop runs."""
    forking.prepare()


@dataclass
class Answer:
    """The output and the exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]


@dataclass
class Shell:
    """Runs `python -m runlane` in one folder with one database."""

    folder: Path
    environment: dict[str, str]
    children: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    def run(self, *arguments: str, expect: int = 0, **variables: str) -> Answer:
        done = forking.run(
            [sys.executable, "-m", "runlane", *arguments],
            cwd=self.folder,
            env=self.environment | variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == expect, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    def refused(self, *arguments: str, code: str, **variables: str) -> str:
        """Run a command that must be refused, check the form of its error and return it."""
        answer = self.run(*arguments, expect=1, **variables)
        assert answer.out == ""
        assert answer.err.startswith(f"Error ({code}): "), answer.err
        return answer.err

    def python(self, code: str) -> Answer:
        """Run a program that uses the app."""
        done = forking.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def enqueue(self, task: str, arguments: dict[str, Any], options: str = "") -> str:
        answer = self.python(
            "import asyncio\nfrom tasks import app\n"
            f"async def main():\n    async with app:\n"
            f"        print((await app.enqueue({task!r}, {arguments!r}, {options})).run_id)\n"
            "asyncio.run(main())"
        )
        assert answer.code == 0, answer.err
        return answer.out.strip()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        child = forking.Popen(
            [sys.executable, "-m", "runlane", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.children.append(child)
        return child

    def start_dev(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `runlane dev`, which needs a flag for a database that is not a file of the folder."""
        shared = ["--shared-database"] if "RUNLANE_DATABASE_URL" in self.environment else []
        return self.start("dev", *arguments, *shared)

    def until(self, child: subprocess.Popen[str], text: str) -> str:
        """Read the output of the child until `text` appears, and return it."""
        assert child.stdout is not None
        output = ""
        for line in child.stdout:
            output += line
            if text in line:
                return output
        raise AssertionError(f"the process ended without printing {text!r}:\n{output}")

    def finish(self, child: subprocess.Popen[str], how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        child.send_signal(how)
        output, _ = child.communicate(timeout=60)
        return child.returncode, output


def make_shell(tmp_path: Path, database_url: str | None) -> Shell:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "tasks.py").write_text(TASKS)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RUNLANE_")}
    environment = clean | {"RUNLANE_WORKER_HEALTH_PORT": "0", "NO_COLOR": "1", "COLUMNS": "200"}
    if database_url is not None:
        environment["RUNLANE_DATABASE_URL"] = database_url
    return Shell(folder, environment)


def end_children(shell: Shell) -> None:
    for child in shell.children:
        if child.poll() is None:
            child.kill()
        child.communicate()


@pytest.fixture(params=["sqlite", "postgres"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Shell]:
    shell = make_shell(tmp_path, request.getfixturevalue("postgres_url") if request.param == "postgres" else None)
    yield shell
    end_children(shell)


@pytest.fixture
def embedded(tmp_path: Path) -> Generator[Shell]:
    """Yield a shell on the embedded file, for tests that do not depend on the database."""
    shell = make_shell(tmp_path, None)
    yield shell
    end_children(shell)


@pytest.fixture
def worked(shell: Shell) -> tuple[Shell, Sequence[str]]:
    """Return a shell after a worker has executed runs: one is completed, one dead, one scheduled, one held."""
    ids = [
        shell.enqueue("greet", {"name": "Ada"}, "priority=5"),
        shell.enqueue("break", {}, "ordering_key='k', on_dead='block'"),
        shell.enqueue("greet", {"name": "Bob"}, "delay_seconds=3600"),
        shell.enqueue("greet", {"name": "Eve"}, "hold=True"),
    ]
    child = shell.start_dev("tasks:app")
    ended: set[str] = set()
    while len(ended) < 2:
        output = shell.until(child, "run_ended")
        ended |= {run_id for run_id in ids if run_id in output.splitlines()[-1]}
    code, _ = shell.finish(child)
    assert code == 0
    return shell, ids


@pytest.fixture
def collector() -> Generator[Collector]:
    found = Collector()
    yield found
    found.close()


@pytest.fixture(params=["sqlite", "postgres-redis"])
def canary_settings(request: pytest.FixtureRequest) -> Generator[Settings]:
    if request.param == "sqlite":
        yield settings_for(request.getfixturevalue("sqlite_url"))
        return
    with redis_for_tests() as redis:
        yield settings_for(request.getfixturevalue("postgres_url"), redis_url=redis.url, redis_prefix="canary")
