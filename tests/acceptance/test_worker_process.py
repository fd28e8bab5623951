"""The worker as a process: start, work, and the signals that end it."""

from __future__ import annotations

import signal
import time

import pytest

from tests.acceptance.conftest import Shell


def status(shell: Shell, run_id: str) -> str:
    return shell.run("runs", "show", run_id, "--json").json["status"]


def wait_for(shell: Shell, run_id: str, wanted: str) -> None:
    deadline = time.monotonic() + 60
    while status(shell, run_id) != wanted:
        assert time.monotonic() < deadline, f"{run_id} did not become {wanted}"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_works_and_drains(shell: Shell, how: signal.Signals) -> None:
    child = shell.start("worker", "tasks:app", "--lanes", "default,slow", "--concurrency", "3")
    shell.until(child, "worker_online")
    done = shell.enqueue("greet", {"name": "Ada"})
    wait_for(shell, done, "completed")
    # Long enough that a slow machine sees it running, and well within the grace period.
    long = shell.enqueue("wait", {"seconds": 8})
    wait_for(shell, long, "running")
    (worker,) = shell.run("workers", "--json").json
    assert (worker["status"], worker["capacity"], worker["pid"]) == ("online", 3, child.pid)
    code, output = shell.finish(child, how)
    assert code == 0
    assert "stopping" in output
    assert "worker_offline" in output
    assert status(shell, long) == "completed"
    assert [worker["status"] for worker in shell.run("workers", "--all", "--json").json] == ["offline"]


def test_a_second_signal_ends_the_grace_period(shell: Shell) -> None:
    child = shell.start("worker", "tasks:app")
    shell.until(child, "worker_online")
    long = shell.enqueue("wait", {"seconds": 600})
    wait_for(shell, long, "running")
    child.send_signal(signal.SIGTERM)
    shell.until(child, "worker_draining")
    code, output = shell.finish(child)
    assert code == 0
    assert "stopping_now" in output
    run = shell.run("runs", "show", long, "--json").json
    assert (run["status"], run["failures"], run["losses"]) == ("queued", 0, 0)


def test_dev_logs_what_happens(shell: Shell) -> None:
    child = shell.start_dev("tasks:app")
    output = shell.until(child, "Runlane dev: tasks break, greet, wait")
    run_id = shell.enqueue("greet", {"name": "Ada"})
    output += shell.until(child, "run_ended")
    assert run_id in output
    code, _ = shell.finish(child, signal.SIGINT)
    assert code == 0
