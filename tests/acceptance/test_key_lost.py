"""The key-lost drill: the encryption key is gone for good. Secrets are set again, and nothing else is affected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.server_process import command, serving

TASKS = """
from runlane import App, Context

app = App()

@app.task("plain")
async def plain(ctx: Context) -> str:
    return "done"

@app.task("secretive", max_attempts=1)
async def secretive(ctx: Context) -> int:
    return len(await ctx.secret("TOKEN"))
"""
TOKEN = "drill-token-52ac"


def new_key(folder: Path) -> str:
    return command(folder, "secrets", "new-key").stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


def test_a_lost_key_costs_the_secrets_and_nothing_else(project: Path) -> None:
    database = {"RUNLANE_DATABASE_URL": f"sqlite:///{project / 'runlane.db'}"}
    first = {**database, "RUNLANE_SECRET_KEY": new_key(project)}
    with serving(project, first, "serve", "tasks:app", "--worker") as server:
        assert command(project, "secrets", "set", "TOKEN", given=TOKEN, **first).returncode == 0
        assert _run(project, "secretive", server.url) == (0, len(TOKEN))

    # The key is lost; the operator creates another one.
    second = {**database, "RUNLANE_SECRET_KEY": new_key(project)}
    report = json.loads(command(project, "doctor", "--json", **second).stdout)
    (finding,) = [item for item in report["findings"] if item["check"] == "secrets"]
    assert (finding["level"], "1 cannot be read" in finding["message"]) == ("broken", True)
    with serving(project, second, "serve", "tasks:app", "--worker") as server:
        assert _run(project, "plain", server.url) == (0, "done")
        code, error = _run(project, "secretive", server.url)
        assert code == 1
        assert TOKEN not in json.dumps(error)
        # The same name is set again, under the new key, without a restart.
        assert command(project, "secrets", "set", "TOKEN", given=f"{TOKEN}-2", **second).returncode == 0
        assert _run(project, "secretive", server.url) == (0, len(TOKEN) + 2)
        healthy = json.loads(command(project, "doctor", "--json", **second).stdout)
        assert [item["level"] for item in healthy["findings"] if item["check"] == "secrets"] == ["ok"]


def _run(folder: Path, task: str, url: str) -> tuple[int, object]:
    """Start a run, follow it to its end, and return the exit code with its result or error."""
    started = command(folder, "run", task, "--json", RUNLANE_URL=url)
    run_id = json.loads(started.stdout)["run_id"]
    done = command(folder, "runs", "tail", run_id, RUNLANE_URL=url)
    shown = json.loads(command(folder, "runs", "show", run_id, "--json", RUNLANE_URL=url).stdout)
    return done.returncode, shown["result"] if done.returncode == 0 else shown["error"]
