"""The commands for lanes, holds, the overview and the demand: on a database, and on a server."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.server_process import ServerProcess, command, serving, write_tasks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lanes")


@pytest.fixture(scope="module")
def server(folder: Path) -> Generator[ServerProcess]:
    with serving(folder, write_tasks(folder), "dev", "tasks:app") as server:
        yield server


@pytest.fixture(params=["server", "database"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Mapping[str, str]:
    if request.param == "database":
        return {"RUNLANE_DATABASE_URL": f"sqlite:///{tmp_path / 'runlane.db'}"}
    return {"RUNLANE_URL": request.getfixturevalue("server").url}


def text_of(folder: Path, target: Mapping[str, str], *arguments: str) -> str:
    done = command(folder, *arguments, **target)
    assert done.returncode == 0, done.stderr
    return done.stdout


def json_of(folder: Path, target: Mapping[str, str], *arguments: str) -> Any:
    return json.loads(text_of(folder, target, *arguments, "--json"))


def test_lanes_are_administered(folder: Path, target: Mapping[str, str]) -> None:
    made = json_of(folder, target, "lanes", "set", "batch", "--create", "--max-slots", "2", "--kinds", "report,export")
    assert (made["lane"]["max_slots"], made["moved_runs"]) == (2, 0)
    changed = json_of(
        folder, target, "lanes", "set", "batch", "--create", "--first-come", "--priority-seconds", "30",
        "--stale-timeout-minutes", "15",
    )["changed"]  # fmt: skip
    assert changed == {
        "fair": {"old": True, "new": False},
        "priority_seconds": {"old": 600, "new": 30},
        "stale_timeout_minutes": {"old": None, "new": 15},
    }
    assert json_of(folder, target, "lanes", "set", "batch", "--stale-timeout-minutes", "0")["changed"] == {
        "stale_timeout_minutes": {"old": 15, "new": None}
    }
    (lane,) = [lane for lane in json_of(folder, target, "lanes", "list") if lane["name"] == "batch"]
    assert lane["kinds"] == ["export", "report"]
    refused = command(folder, "lanes", "delete", "batch", **target)
    assert (refused.returncode, "is assigned to the lane" in refused.stderr) == (1, True)
    text_of(folder, target, "lanes", "unassign", "batch", "report,export")
    assert text_of(folder, target, "lanes", "delete", "batch") == "batch: deleted.\n"


def test_holds(folder: Path, target: Mapping[str, str]) -> None:
    text_of(folder, target, "lanes", "set", "media", "--create")
    first = json_of(folder, target, "lanes", "hold", "media", "--reason", "restore", "--owner", "restore-17")
    text_of(folder, target, "lanes", "hold", "media", "--reason", "cleaning", "--minutes", "5")
    assert [hold["reason"] for hold in json_of(folder, target, "lanes", "holds", "media")] == ["restore", "cleaning"]
    assert "media\theld\t" in text_of(folder, target, "lanes", "list")
    said = text_of(folder, target, "lanes", "release", "media", first["id"])
    assert said == "media: the hold of restore-17 is released.\n"
    again = command(folder, "lanes", "release", "media", first["id"], **target)
    assert (again.returncode, "has no active hold" in again.stderr) == (1, True)
    (left,) = json_of(folder, target, "lanes", "holds", "media")
    text_of(folder, target, "lanes", "release", "media", left["id"])


def test_the_overview_and_the_demand(folder: Path, target: Mapping[str, str]) -> None:
    text_of(folder, target, "lanes", "set", "media", "--create")
    found = json_of(folder, target, "admin", "workers")
    assert {"running_jobs", "queued_by_type", "total_slots", "slots_in_use"} <= found.keys()
    assert "slots in use" in text_of(folder, target, "admin", "workers")
    demand = json_of(folder, target, "admin", "scaling", "--lanes", "media", "--concurrency", "4")
    assert (demand["wanted_slots"], demand["wanted_workers"], demand["lanes"][0]["lane"]) == (0, 0, "media")
    assert text_of(folder, target, "admin", "scaling").splitlines()[-1] == "0 slots, 0 workers with 1 slot each"
