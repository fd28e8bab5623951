"""Every command, for a pipe, for a terminal and as JSON."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence

import pytest

from runlane.store.sql.migrations import HEAD
from runlane.version import VERSION
from tests import forking
from tests.acceptance.conftest import Shell

Worked = tuple[Shell, Sequence[str]]


def on_a_terminal(shell: Shell, *arguments: str) -> str:
    """Return what the command prints when its output is a terminal."""
    master, slave = pty.openpty()
    child = forking.Popen(
        [sys.executable, "-m", "runlane", *arguments],
        cwd=shell.folder,
        env=shell.environment,
        stdout=slave,
        stderr=subprocess.PIPE,
    )
    os.close(slave)
    output = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        output += piece
    os.close(master)
    assert child.communicate(timeout=60)[1] == b""
    assert child.returncode == 0
    return output.decode()


def test_help_and_version(embedded: Shell) -> None:
    assert embedded.run("--version").out.strip() == VERSION
    for arguments in (["--help"], ["runs", "--help"], ["lanes", "set", "--help"], ["worker", "--help"]):
        assert "Usage" in embedded.run(*arguments).out


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["runs"], ["runs", "show"], ["runs", "list", "--limit", "0"], ["runs", "priority", "x", "high"],
     ["worker", "a:b", "c:d"], ["worker", "tasks:app", "--concurrency", "0"],
     ["lanes", "set", "a", "--max-slots", "many"]],
)  # fmt: skip
def test_wrong_usage_ends_with_two(embedded: Shell, arguments: list[str]) -> None:
    answer = embedded.run(*arguments, expect=2)
    assert "Usage" in answer.err + answer.out


def test_the_commands_show_the_runs_of_a_worker(worked: Worked) -> None:
    shell, (done, dead, later, held) = worked

    listed = shell.run("runs", "list")
    assert listed.lines[0] == ["run", "task", "status", "lane", "attempt", "accepted", "took", "key", "tags"]
    assert [line[0] for line in listed.lines[1:]] == [held, later, dead, done]
    assert [line[2] for line in listed.lines[1:]] == ["awaiting_approval", "scheduled", "failed", "completed"]
    as_json = shell.run("runs", "list", "--json").json
    assert [run["id"] for run in as_json] == [held, later, dead, done]
    assert "completed" in on_a_terminal(shell, "runs", "list")
    assert [run["id"] for run in shell.run("runs", "list", "--status", "failed", "--json").json] == [dead]
    assert [run["id"] for run in shell.run("runs", "list", "--task", "greet", "--lane", "default", "--json").json] == [
        held,
        later,
        done,
    ]
    page = shell.run("runs", "list", "--limit", "1", "--before", held, "--json").json
    assert [run["id"] for run in page] == [later]
    assert [run["id"] for run in shell.run("runs", "list", "--key", "k", "--json").json] == [dead]

    shown = shell.run("runs", "show", done)
    for text in ("completed", '{"greeting":"Hello Ada"}', "worker_picked_up", "attempt", "greeting"):
        assert text in shown.out
    whole = shell.run("runs", "show", done, "--json").json
    assert (whole["status"], whole["result"], whole["priority"]) == ("completed", {"greeting": "Hello Ada"}, 5)
    assert [event["type"] for event in whole["events"]] == ["queued", "worker_picked_up", "log", "done"]
    assert [attempt["outcome"] for attempt in whole["attempts"]] == ["completed"]
    assert "ValueError: it broke" in shell.run("runs", "show", dead).out

    letters = shell.run("dead-letters", "list")
    assert letters.lines[1][0] == dead
    assert "ValueError: it broke" in letters.lines[1][-1]
    assert [letter["run_id"] for letter in shell.run("dead-letters", "list", "--json").json] == [dead]
    letter = shell.run("dead-letters", "show", dead).json
    assert "raise ValueError" in letter["attempts"][0]["error"]["traceback"]
    assert dead in on_a_terminal(shell, "dead-letters", "list")

    lanes = shell.run("lanes", "list")
    assert [line[0] for line in lanes.lines[1:]] == ["default", "fragile", "slow"]
    assert {lane["name"]: lane["max_slots"] for lane in shell.run("lanes", "list", "--json").json} == {
        "default": None,
        "fragile": None,
        "slow": None,
    }
    assert "no cap" in on_a_terminal(shell, "lanes", "list")

    assert shell.run("workers").lines[0][0] == "worker"
    assert len(shell.run("workers").lines) == 1
    assert [worker["status"] for worker in shell.run("workers", "--all", "--json").json] == ["offline"]
    assert "No workers. Start one" in on_a_terminal(shell, "workers")


def test_operators_change_runs(worked: Worked) -> None:
    shell, (done, dead, later, held) = worked
    assert shell.run("runs", "approve", held).out == f"{held}: queued\n"
    assert shell.run("runs", "priority", later, "50", "--json").json == {"run_id": later, "status": "scheduled"}
    assert shell.run("runs", "cancel", later).out == f"{later}: cancelled\n"
    assert shell.run("runs", "cancel", later, "--json").json == {"run_id": later, "status": "cancelled"}
    assert shell.run("runs", "release", dead).out == f"{dead}: failed\n"
    assert shell.run("runs", "retry", dead, "--json").json == {"run_id": dead, "status": "queued"}
    assert shell.run("dead-letters", "list", "--json").json == []
    assert "No dead letters." in on_a_terminal(shell, "dead-letters", "list")
    for arguments, output in (
        (["approve", done], "is completed. Only a run that awaits approval can be approved"),
        (["retry", done], "is completed. Only a failed run can be retried"),
        (["release", done], "is completed. Only a failed run that blocks"),
        (["priority", done, "1"], "is completed. Only the priority of a waiting run"),
    ):
        assert output in shell.refused("runs", *arguments, code="wrong_state")
    assert "must be between -100 and 100" in shell.refused("runs", "priority", held, "101", code="invalid_request")
    for verb in ("show", "cancel", "retry", "approve", "release"):
        assert 'The run "run_x" does not exist' in shell.refused("runs", verb, "run_x", code="run_not_found")
    assert "has no dead letter" in shell.refused("dead-letters", "show", done, code="not_found")
    assert 'did you mean "failed"' in shell.refused("runs", "list", "--status", "fialed", code="invalid_request")


def test_operators_handle_dead_letters_and_change_runs_in_bulk(worked: Worked) -> None:
    """On the database alone: no server and no worker runs."""
    shell, (done, dead, later, held) = worked
    (group,) = shell.run("dead-letters", "groups", "--json").json
    assert (group["count"], group["code"], group["sample"]["run_id"]) == (1, "ValueError", dead)
    assert shell.run("dead-letters", "assign", dead, "--to", "ann").out == f"{dead}: open, assigned to ann\n"
    assert shell.run("dead-letters", "ack", dead, "--note", "seen", "--json").json["note"] == "seen"
    assert shell.run("dead-letters", "list", "--state", "open", "--json").json == []
    assert [line["run_id"] for line in map(json.loads, shell.run("dead-letters", "export").out.splitlines())] == [dead]
    assert "1 would be changed" in shell.run("dead-letters", "retry", "--code", "ValueError", "--dry-run").out
    job = shell.run("dead-letters", "retry", "--code", "ValueError", "--spread", "60", "--json").json
    assert (job["state"], job["changed"], job["refused"]) == ("completed", 1, 0)
    assert shell.run("runs", "show", dead, "--json").json["priority"] == -10
    moved = shell.run("bulk", "start", "priority", "--task", "greet", "--priority", "7", "--json").json
    assert (moved["total"], moved["changed"]) == (2, 2)
    assert {shell.run("runs", "show", run, "--json").json["priority"] for run in (later, held)} == {7}
    tagged = shell.run("bulk", "start", "tag", "--target", "greet", "--add", "a", "--add", "b", "--json").json
    assert tagged["changed"] == len(shell.run("runs", "list", "--tag", "b", "--json").json) > 0
    shell.run("bulk", "start", "tag", "--tag", "a", "--remove", "b")
    assert shell.run("runs", "list", "--tag", "b", "--json").json == []
    assert "matches nothing" in shell.refused("bulk", "start", "cancel", "--schedule", "none", code="invalid_request")
    refused = shell.run("bulk", "start", "cancel", "--run", done)
    assert "0 of 1 changed, 1 refused" in refused.out
    (latest, *_) = shell.run("bulk", "list", "--json").json
    assert shell.run("bulk", "items", latest["job_id"], "--state", "refused", "--json").json[0]["code"] == "wrong_state"
    assert "completed" in shell.run("bulk", "stop", latest["job_id"]).out
    assert shell.run("bulk", "show", latest["job_id"], "--json").json["refused"] == 1
    assert "Name either runs or a filter" in shell.refused("bulk", "start", "cancel", code="invalid_request")
    assert "matches nothing" in shell.refused("bulk", "start", "cancel", "--task", "none", code="invalid_request")
    shell.run("runs", "cancel", dead)
    assert shell.run("dead-letters", "show", dead).json["state"] == "discarded"
    assert "can become discarded" in shell.refused("dead-letters", "discard", dead, code="wrong_state")


def test_operators_change_lanes(shell: Shell) -> None:
    assert shell.run("lanes", "set", "media", "--create", "--max-slots", "3").out.splitlines() == [
        "media: enabled None -> True",
        "media: max_slots None -> 3",
        "media: poll_interval_ms None -> 250",
        "media: fair None -> True",
        "media: priority_seconds None -> 600",
    ]
    assert shell.run("lanes", "set", "media", "--disable", "--poll-interval-ms", "100").out.splitlines() == [
        "media: enabled True -> False",
        "media: poll_interval_ms 250 -> 100",
    ]
    run_id = shell.enqueue("greet", {"name": "Ada"})
    moved = shell.run("lanes", "set", "media", "--kinds", "greet, break", "--json").json
    assert (moved["moved_runs"], moved["changed"]) == (1, {})
    assert moved["lane"]["enabled"] is False
    assert shell.run("runs", "show", run_id, "--json").json["lane"] == "media"
    assert shell.run("lanes", "set", "media", "--enable", "--uncapped", "--json").json["changed"] == {
        "enabled": {"old": False, "new": True},
        "max_slots": {"old": 3, "new": None},
    }
    assert shell.run("lanes", "set", "media", "--enable").out == "media: nothing changed.\n"
    for arguments, output, code in (
        (["lanes", "set", "meida", "--disable"], 'did you mean "media"', "unknown_lane"),
        (["lanes", "set", "media", "--max-slots", "10001"], "must be between 0 and 10000", "invalid_request"),
        (["lanes", "set", "media", "--poll-interval-ms", "1"], "must be between 50 and 120000", "invalid_request"),
        (["lanes", "set", "media", "--max-slots", "1", "--uncapped"], "contradict each other", "invalid_request"),
        (["lanes", "set", "media"], "Nothing to change", "invalid_request"),
        (["lanes", "set", "x" * 65, "--create"], "at most 64 are allowed", "invalid_input"),
    ):
        assert output in shell.refused(*arguments, code=code)


def test_the_schema_is_made_shown_and_raised_once(shell: Shell, request: pytest.FixtureRequest) -> None:
    if "RUNLANE_DATABASE_URL" in shell.environment:
        shell.environment["RUNLANE_DATABASE_URL"] = request.getfixturevalue("empty_postgres")
    assert shell.run("db", "current", "--json").json == {"database": None, "code": HEAD}
    assert "schema none; this version needs" in shell.run("db", "current").out
    assert f"schema none -> {HEAD}." in shell.run("db", "upgrade").out
    assert f"schema {HEAD}, nothing to do." in shell.run("db", "upgrade").out
    assert shell.run("db", "upgrade", "--json").json == {"before": HEAD, "now": HEAD}


def test_a_reader_that_goes_away_is_not_an_error(embedded: Shell) -> None:
    embedded.run("db", "upgrade")
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m runlane lanes list --json | head -c 1"],
        cwd=embedded.folder,
        env=embedded.environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == b"["
    assert b"Traceback" not in done.stderr
