"""`runlane dev` and databases: it may change a file of the project and treats every other database as shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import end_children, make_shell
from tests.server_process import command, serving, write_tasks


def write(folder: Path, name: str, body: dict[str, Any]) -> Path:
    path = folder / "definitions" / "agents" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body))
    return path


def test_dev_refuses_a_database_that_is_not_of_the_project(tmp_path: Path, postgres_url: str) -> None:
    (tmp_path / "here").mkdir()
    for url in (postgres_url, f"sqlite:///{tmp_path}/elsewhere.db"):
        done = command(tmp_path / "here", "dev", "--port", "0", RUNLANE_DATABASE_URL=url)
        assert done.returncode == 1
        assert "is not a file of this folder" in done.stderr
        assert "--shared-database" in done.stderr
    assert not (tmp_path / "elsewhere.db").exists()


def test_dev_on_a_shared_database_removes_and_overwrites_nothing(tmp_path: Path, postgres_url: str) -> None:
    shared = {"RUNLANE_DATABASE_URL": postgres_url}
    assert command(tmp_path, "db", "upgrade", **shared).returncode == 0
    theirs, here = tmp_path / "theirs", tmp_path / "here"
    write(theirs, "clerk", {"id": "clerk", "name": "Theirs"})
    assert command(theirs, "sync", **shared).returncode == 0
    write(here, "extra", {"id": "extra"})
    assert command(here, "sync", **shared).returncode == 0
    (here / "definitions/agents/extra.json").unlink()
    write(here, "writer", {"id": "writer"})

    shell = make_shell(tmp_path, postgres_url)
    shell.folder = here
    try:
        child = shell.start_dev("--port", "0")
        output = shell.until(child, "Shared database postgresql://")
        assert "executes its runs and serves its data without keys to programs on this machine" in output
        assert "removed=[]" in output
        write(here, "clerk", {"id": "clerk", "name": "Mine"})
        output = shell.until(child, "definitions_refused")
        assert 'agent:clerk (source "theirs")' in output
    finally:
        end_children(shell)
    stored = json.loads(command(here, "bundle", "export", **shared).stdout)["agents"]
    assert {agent["id"]: agent.get("name") for agent in stored} == {"clerk": "Theirs", "extra": None, "writer": None}


@pytest.mark.parametrize("name", ["runlane.db", "data/other.db"])
def test_a_file_in_the_project_is_its_own(tmp_path: Path, name: str) -> None:
    (tmp_path / "data").mkdir()
    variables = {**write_tasks(tmp_path), "RUNLANE_DATABASE_URL": f"sqlite:///{tmp_path / name}"}
    with serving(tmp_path, variables, "dev", "tasks:app") as server:
        assert "Shared database" not in (tmp_path / f"server-{server.port}.log").read_text()
