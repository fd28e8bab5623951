"""Crash points: the list of failpoints is the list of places in the code, and a crash is a real signal."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import runlane
from runlane import failpoints
from runlane.testing.crash_points import VARIABLE, CrashPoint, Fate

REACHES_TWICE = """
from runlane import failpoints
from runlane.testing import crash_points
crash_points.install_from_environment()
for step in range(1, 4):
    print(step, flush=True)
    failpoints.failpoint("claim.before_commit")
    failpoints.failpoint("claim.committed")
print("end", flush=True)
"""


def reached_in_source() -> set[str]:
    """Return every constant that some code passes to failpoint()."""
    found: set[str] = set()
    for path in Path(runlane.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failpoint":
                parts = [part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
                found.update(part for part in parts if isinstance(part, str))
    return found


def run_with(crash_point: CrashPoint | None) -> subprocess.Popen[str]:
    environment = {**os.environ, **({VARIABLE: str(crash_point)} if crash_point else {})}
    return subprocess.Popen([sys.executable, "-c", REACHES_TWICE], env=environment, stdout=subprocess.PIPE, text=True)


def test_every_point_is_reached_somewhere_and_every_reached_point_is_listed() -> None:
    assert reached_in_source() == set(failpoints.POINTS)


def test_without_the_variable_nothing_happens() -> None:
    with run_with(None) as process:
        assert process.communicate(timeout=30)[0].split() == ["1", "2", "3", "end"]
        assert process.returncode == 0


@pytest.mark.parametrize("nth", [1, 3])
def test_the_process_dies_at_the_nth_reach(nth: int) -> None:
    with run_with(CrashPoint("claim.committed", nth)) as process:
        output = process.communicate(timeout=30)[0].split()
        assert process.returncode == -signal.SIGKILL
        assert output == [str(step) for step in range(1, nth + 1)]


def test_a_frozen_process_continues_when_it_is_thawed() -> None:
    with run_with(CrashPoint("claim.before_commit", 2, Fate.FREEZE)) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=30)[0].split() == ["1", "2", "3", "end"]


@pytest.mark.parametrize("text", ["no.such_point", "claim.committed:0", "claim.committed:x", "claim.committed:1:burn"])
def test_a_string_that_names_no_crash_point_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        CrashPoint.parse(text)


def test_crash_points_survive_a_round_trip() -> None:
    for text in ("accept.committed", "accept.committed:4", "accept.committed:2:freeze"):
        assert CrashPoint.parse(str(CrashPoint.parse(text))) == CrashPoint.parse(text)
