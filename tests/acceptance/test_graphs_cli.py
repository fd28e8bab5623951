"""`runlane dev` in a project with langgraph.json: graphs are hosted, reloaded, and reported when they are broken."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests import forking
from tests.server_process import ServerProcess, command, environment, serving

ROOT = Path(__file__).parents[2]
REFUNDS = ROOT / "examples" / "refunds"
SECONDS = 60.0


@pytest.fixture(scope="module", autouse=True)
def preloaded() -> None:
    """Start the process that forks servers with LangGraph while no event loop runs."""
    forking.prepare(forking.GRAPHS)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example."""
    return Path(shutil.copytree(REFUNDS, tmp_path / "refunds"))


@pytest.fixture
def dev(project: Path) -> Generator[ServerProcess]:
    with serving(project, forking.GRAPHS, "dev") as server:
        yield server


def _log(project: Path) -> str:
    return "".join(path.read_text() for path in project.glob("server-*.log"))


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)


def _findings(project: Path) -> list[tuple[str, str]]:
    done = command(project, "doctor", "--json")
    found = json.loads(done.stdout)["findings"]
    return [(finding["level"], finding["message"]) for finding in found if finding["check"] == "graphs"]


def test_the_example_asks_and_is_answered_with_the_client_of_langgraph(project: Path, dev: ServerProcess) -> None:
    done = subprocess.run(
        [sys.executable, "ask.py"],
        cwd=project,
        env=environment(RUNLANE_URL=dev.url),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The graph asks: {'question': 'Pay this refund?', 'order': 'A-17', 'euro': 250}" in done.stdout
    assert "'log': ['order A-17 is known', 'a person said yes', 'paid 250 euro']" in done.stdout
    assert "graphs refunds" in _log(project)
    assert _findings(project) == [("ok", "1 hosted")]


def test_an_edit_is_loaded_and_an_error_in_it_is_reported(project: Path, dev: ServerProcess) -> None:
    file = project / "refunds.py"
    source = file.read_text()
    file.write_text(source + "\nraise ValueError('half written')\n")
    _until(lambda: "graph_not_loaded" in _log(project), "the report of the broken file")
    _until(lambda: "graphs_reloaded" in _log(project), "the reload")
    ((level, message),) = _findings(project)
    assert level == "broken"
    assert "ValueError: half written" in message
    file.write_text(source)
    _until(lambda: _log(project).count("graphs_reloaded") == 2, "the reload of the corrected file")
    assert _findings(project) == [("ok", "1 hosted")]


def test_a_file_that_is_not_valid_is_refused(tmp_path: Path) -> None:
    (tmp_path / "langgraph.json").write_text('{"graphs": {"a": "agent.py"}}')
    done = command(tmp_path, "worker")
    assert done.returncode == 1
    assert 'The path "agent.py" of the graph "a" is not valid' in done.stderr


def test_a_server_without_a_worker_applies_the_file(tmp_path: Path) -> None:
    (tmp_path / "langgraph.json").write_text('{"graphs": {"a": "./a.py:graph"}, "auth": {"path": "./auth.py:auth"}}')
    (tmp_path / "auth.py").write_text("raise RuntimeError('the directory of users is missing')\n")
    done = command(tmp_path, "serve")
    assert done.returncode == 1
    assert "the directory of users is missing" in done.stderr
    assert 'The auth module "./auth.py:auth" cannot be loaded' in done.stderr
