"""Bad input gets an error with the cure, and loses nothing."""

from __future__ import annotations

import signal
import socket
import sqlite3
from pathlib import Path

import pytest

from tests.acceptance.conftest import Shell

PASSWORD = "hunter2"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("'gret', {}", ['UnknownTask: No task "gret" is registered (did you mean "greet"?)', "@app.task"]),
        (
            "'greet', {'nam': 'Ada'}",
            ["InvalidInput", "name is missing", 'nam is not an argument (did you mean "name"?)'],
        ),
        ("'greet', {'name': 7}", ["InvalidInput", "name: input should be a valid string, not 7"]),
        ("'greet', {'name': object()}", ["InvalidInput", "is not JSON"]),
        ("'greet', {'name': 'x' * 2_000_000}", ["InputTooLarge", "RUNLANE_MAX_INPUT_BYTES", "pass a reference"]),
        ("'greet', {'name': 'Ada'}, priority=101", ["InvalidRequest", "must be between -100 and 100"]),
        ("'greet', {'name': 'Bob'}, idempotency_key='once'", ["IdempotencyConflict", "or use a new key"]),
        ("'greet', {'name': '\\ud800'}", ["InvalidInput", "is not JSON"]),
        ("'greet', {'name': 'Ada'}, ordering_key='a\\x00b'", ["InvalidInput", "NUL character", "Remove it"]),
    ],
)
def test_a_bad_request_from_a_program(embedded: Shell, call: str, expected: list[str]) -> None:
    embedded.enqueue("greet", {"name": "Ada"}, "idempotency_key='once'")
    answer = embedded.python(f"import asyncio\nfrom tasks import app\nasyncio.run(app.enqueue({call}))")
    assert answer.code == 1
    last = answer.err.strip().splitlines()[-1]
    for text in expected:
        assert text in last
    assert len(embedded.run("runs", "list", "--json").json) == 1


@pytest.mark.parametrize(
    ("path", "code", "expected"),
    [
        ("nothing:app", "app_not_found", 'The module "nothing" does not exist. Run the command from the folder'),
        (":app", "app_not_found", "Form: package.module:name, such as shop.tasks:app"),
        ("tasks.py", "app_not_found", '"tasks.py" is the path of a file. Name its module: tasks:app'),
        ("./shop/tasks.py:api", "app_not_found", "Name its module: shop.tasks:api"),
        ("../shop/tasks.py", "app_not_found", "Name its module: tasks:app"),
        ("tasks:ap", "app_not_found", 'tasks has no App "ap" (did you mean "app"?)'),
        ("empty", "app_not_found", "empty has no App. Create one there: app = runlane.App()"),
        ("broken:app", "app_not_found", "broken does not import: ZeroDivisionError"),
        ("needs:app", "app_not_found", "needs does not import: No module named 'not_installed'"),
        ("twice:app", "duplicate_task", 'The task name "greet" is taken by tasks.greet; other.greet cannot use it too'),
        ("tasks:greet", "app_not_found", 'tasks has no App "greet"'),
    ],
)
def test_an_app_that_cannot_be_found(embedded: Shell, path: str, code: str, expected: str) -> None:
    (embedded.folder / "empty.py").write_text("")
    (embedded.folder / "broken.py").write_text("1 / 0")
    (embedded.folder / "needs.py").write_text("import not_installed")
    (embedded.folder / "other.py").write_text(
        "from runlane import App, Context\napp = App()\n@app.task('greet')\ndef greet(ctx: Context) -> None: ...\n"
    )
    (embedded.folder / "twice.py").write_text("from tasks import app\nimport other\napp.include(other.app)\n")
    assert expected in embedded.refused("dev" if path == "nothing:app" else "worker", path, code=code)


@pytest.mark.parametrize(
    ("lanes", "code", "expected"),
    [
        ("sloww", "unknown_lane", 'No lane "sloww" exists (did you mean "slow"?)'),
        ("slow,nowhere", "unknown_lane", 'No lane "nowhere" exists'),
        ("", "invalid_request", "--lanes is empty"),
        (" , ", "invalid_request", "--lanes is empty"),
    ],
)
def test_a_worker_for_lanes_that_do_not_exist(embedded: Shell, lanes: str, code: str, expected: str) -> None:
    answer = embedded.run("worker", "tasks:app", "--lanes", lanes, expect=1)
    last = answer.err.strip().splitlines()[-1]
    assert last.startswith(f"Error ({code}): ")
    assert expected in last


@pytest.mark.parametrize(
    ("url", "code", "expected"),
    [
        (f"mysql://app:{PASSWORD}@host/shop", "invalid_settings", "RUNLANE_DATABASE_URL: the URL must begin with"),
        (
            f"postgresql://app:{PASSWORD}@host",
            "invalid_settings",
            "the URL does not name a database. Form: postgresql://",
        ),
        (f"postgresql://app:{PASSWORD}/x@host/shop", "invalid_settings", "the URL cannot be parsed"),
        (f"postgresql://app:{PASSWORD}@127.0.0.1:1/shop", "unavailable", "127.0.0.1:1/shop cannot be reached"),
        ("sqlite:///tasks.py/x.db", "configuration", "tasks.py/x.db cannot be opened"),
    ],
)
def test_a_wrong_database_url(embedded: Shell, url: str, code: str, expected: str) -> None:
    for command in (["runs", "list"], ["worker", "tasks:app"], ["db", "upgrade"]):
        answer = embedded.refused(*command, code=code, RUNLANE_DATABASE_URL=url)
        assert expected in answer
        assert PASSWORD not in answer


def test_a_bad_setting(embedded: Shell) -> None:
    output = embedded.refused("worker", "tasks:app", code="invalid_settings", RUNLANE_CONCURRENCY="0")
    assert "RUNLANE_CONCURRENCY: " in output


@pytest.mark.parametrize("version", ["9999", "0000"])
def test_an_unknown_schema_version_is_refused(embedded: Shell, version: str, tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    embedded.environment["RUNLANE_DATABASE_URL"] = f"sqlite:///{file}"
    embedded.run("db", "upgrade")
    connection = sqlite3.connect(file)
    with connection:
        connection.execute("update alembic_version set version_num = ?", (version,))
    connection.close()
    for command in (["runs", "list"], ["worker", "tasks:app"], ["db", "upgrade"]):
        output = embedded.refused(*command, code="schema_too_new")
        assert f"has schema {version}" in output
        assert "Install the newer runlane" in output


def test_a_database_without_a_schema(embedded: Shell, empty_postgres: str) -> None:
    for command in (["runs", "list"], ["worker", "tasks:app"]):
        output = embedded.refused(*command, code="schema_outdated", RUNLANE_DATABASE_URL=empty_postgres)
        assert "Run: runlane db upgrade" in output


@pytest.mark.parametrize("command", [["chat", "helper", "--message", "hi"], ["run", "greet"]])
def test_a_wait_for_a_server_reports_that_none_answers(embedded: Shell, command: list[str]) -> None:
    with socket.socket() as closed:
        # Bound and not listening, so that connections are refused.
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        child = embedded.start(*command, "--url", url)
        output = embedded.until(child, "does not respond yet")
        embedded.finish(child, signal.SIGKILL)
    assert f"{url} does not respond yet (" in output
    assert "start one: runlane dev" in output
