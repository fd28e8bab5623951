"""The command line against a real server: what it prints, and exit codes that scripts can use."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

from tests import forking
from tests.server_process import ServerProcess, command, environment, serving, write_tasks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def database(folder: Path) -> Mapping[str, str]:
    return write_tasks(folder)


@pytest.fixture(scope="module")
def server(folder: Path, database: Mapping[str, str]) -> Generator[ServerProcess]:
    with serving(folder, database, "dev", "tasks:app") as server:
        yield server


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_run_and_follow_in_a_pipe(folder: Path, server: ServerProcess) -> None:
    done = command(folder, "run", "talk", "--input", '{"count": 2}', "--follow", RUNLANE_URL=server.url)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert [line.split()[3] for line in printed[:-1]] == [
        "queued", "worker_picked_up", "log", "checkpoint", "log", "checkpoint", "done",
    ]  # fmt: skip
    assert "line 1  number=1" in printed[2]
    assert printed[-1] == "result  2"
    assert "\x1b" not in done.stdout


def test_run_and_follow_for_programs(folder: Path, server: ServerProcess) -> None:
    (folder / "input.json").write_text('{"count": 2}')
    output = command(folder, "run", "talk", "--input", "@input.json", "--follow", "--json", "--url", server.url)
    *events, end = lines(output.stdout)
    assert [event["seq"] for event in events if "seq" in event] == [1, 2, 3, 4, 5, 6, 7]
    assert (end["type"], end["status"], end["result"]) == ("result", "completed", 2)


def test_run_without_following(folder: Path, server: ServerProcess) -> None:
    options = ("--priority", "5", "--key", "k", "--delay", "3600", "--idempotency-key", "one", "--json")
    first, again = [
        json.loads(
            command(
                folder, "run", "talk", *options, "--input", "-", given='{"count": 1}', RUNLANE_URL=server.url
            ).stdout
        )
        for _ in range(2)
    ]
    assert first["run_id"] == again["run_id"]
    assert (first["status"], again["replayed"]) == ("scheduled", True)


def test_rules_of_flow_control_are_options_and_the_reason_for_waiting_is_shown(
    folder: Path, server: ServerProcess
) -> None:
    given = ("run", "talk", "--input", '{"count": 1}', "--json")
    rules = '{"debounce": {"key": "cli", "delay_seconds": 3600}}'
    first, second = [
        json.loads(command(folder, *given, "--flow-control", rules, RUNLANE_URL=server.url).stdout) for _ in range(2)
    ]
    assert (first["run_id"], second["outcome"]) == (second["run_id"], "debounced")
    shown = command(folder, "runs", "show", first["run_id"], RUNLANE_URL=server.url)
    assert "waits  debounced until " in shown.stdout
    once = (*given, "--unique-key", "cli", "--hold", "--expires-after", "3600")
    assert command(folder, *once, RUNLANE_URL=server.url).returncode == 0
    refused = command(folder, *once, RUNLANE_URL=server.url)
    assert refused.returncode != 0
    assert 'with the unique key "cli" is open' in refused.stderr
    skipping = ("--flow-control", '{"unique": {"on_conflict": "skip"}}', "--unique-key", "cli")
    skipped = command(folder, *given[:-1], *skipping, RUNLANE_URL=server.url)
    assert skipped.stdout.strip() == "skipped: no run was started"


@pytest.mark.parametrize("over_http", [True, False])
def test_reads_and_changes_are_the_same_over_http_and_on_the_database(
    folder: Path, server: ServerProcess, database: Mapping[str, str], over_http: bool
) -> None:
    way = {"RUNLANE_URL": server.url} if over_http else database

    def output(*arguments: str) -> str:
        done = command(folder, *arguments, **way)
        assert done.returncode == 0, done.stderr
        return done.stdout

    started = command(folder, "run", "talk", "--input", '{"count": 3}', "--hold", "--json", RUNLANE_URL=server.url)
    run_id = json.loads(started.stdout)["run_id"]
    assert run_id in output("runs", "list", "--status", "awaiting_approval", "--task", "talk")
    assert json.loads(output("runs", "priority", run_id, "9", "--json")) == {
        "run_id": run_id, "status": "awaiting_approval",
    }  # fmt: skip
    assert output("runs", "approve", run_id) == f"{run_id}: queued\n"
    assert output("runs", "tail", run_id).endswith("completed\nresult  3\n")
    assert [event["seq"] for event in lines(output("runs", "tail", run_id, "--after", "8", "--json"))[:-1]] == [9, 10]
    assert output("runs", "logs", run_id) == "line 1  number=1\nline 2  number=2\nline 3  number=3\n"
    assert [line["index"] for line in lines(output("runs", "logs", run_id, "--since", "5", "--follow", "--json"))] == [
        5,
        7,
    ]
    shown = json.loads(output("runs", "show", run_id, "--json"))
    assert (shown["status"], shown["result"], len(shown["events"])) == ("completed", 3, 10)
    assert shown["attempts"][0]["outcome"] == "completed"
    assert shown["steps"][0]["output"] == 3
    assert "line 3" in output("runs", "show", run_id)


@pytest.mark.parametrize("over_http", [True, False])
def test_tags_counts_and_quotas_are_the_same_over_http_and_on_the_database(
    folder: Path, server: ServerProcess, database: Mapping[str, str], over_http: bool
) -> None:
    way = {"RUNLANE_URL": server.url} if over_http else database
    name = "http" if over_http else "database"

    def output(*arguments: str) -> str:
        done = command(folder, *arguments, **way)
        assert done.returncode == 0, done.stderr
        return done.stdout

    given = ("--input", '{"count": 1}', "--hold", "--tag", name, "--tag", "cli", "--json")
    run_id = json.loads(command(folder, "run", "talk", *given, RUNLANE_URL=server.url).stdout)["run_id"]
    (listed,) = json.loads(output("runs", "list", "--tag", name, "--tag", "cli", "--json"))
    assert (listed["id"], listed["tags"]) == (run_id, ["cli", name])
    assert output("runs", "tag", run_id, "--add", "seen", "--remove", "cli") == f"{run_id}: {name} seen\n"
    assert run_id not in output("runs", "list", "--tag", name, "--tag", "cli")
    assert json.loads(output("runs", "tag", run_id, "--set", name, "--json")) == {"run_id": run_id, "tags": [name]}
    assert f"tags  {name}" in output("runs", "show", run_id)
    counts = {row["status"]: row["count"] for row in json.loads(output("runs", "count", "--task", "talk", "--json"))}
    assert counts["awaiting_approval"] >= 1
    output("quotas", "set", "runs_per_day", "100000")
    quotas = {row["name"]: row for row in json.loads(output("quotas", "list", "--json"))}
    assert quotas["runs_per_day"]["limit"] == 100000
    assert quotas["runs_per_day"]["used"] >= 1
    output("quotas", "set", "runs_per_day", "--no-limit")
    refused = command(folder, "quotas", "set", "runs_per_dya", "1", **way)
    assert refused.returncode == 1
    assert 'did you mean "runs_per_day"' in refused.stderr
    output("runs", "cancel", run_id)


@pytest.mark.parametrize("over_http", [True, False])
def test_runs_are_named_by_a_unique_prefix_or_as_the_last_one(
    folder: Path, server: ServerProcess, database: Mapping[str, str], over_http: bool
) -> None:
    way = {"RUNLANE_URL": server.url} if over_http else database

    def output(*arguments: str) -> str:
        done = command(folder, *arguments, **way)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(*arguments: str) -> str:
        done = command(folder, *arguments, **way)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    ids: list[str] = []
    for _ in range(4):
        held = command(folder, "run", "talk", "--input", '{"count": 1}', "--hold", "--json", RUNLANE_URL=server.url)
        ids.append(json.loads(held.stdout)["run_id"])
    # The first 16 digits of an id are time and a counter: no two runs of one server have the same.
    first, newest = ids[0], ids[-1]
    prefix = first[: len("run_") + 16]
    assert json.loads(output("runs", "show", prefix, "--json"))["id"] == first
    assert json.loads(output("runs", "show", "--last", "--json"))["id"] == newest
    assert output("runs", "priority", prefix, "5") == f"{first}: awaiting_approval\n"
    assert output("runs", "priority", "--last", "-5") == f"{newest}: awaiting_approval\n"
    assert output("runs", "priority", "6", "--last") == f"{newest}: awaiting_approval\n"
    assert newest in refused("runs", "send", "--last", "news")
    assert newest in refused("runs", "resume", "--last", "--answer", "yes")
    assert first in refused("runs", "fork", prefix, "--from", "draft")
    assert first in refused("runs", "retry", prefix)
    ambiguous = refused("runs", "cancel", "run_0")
    assert '"run_0" is the beginning of several run ids: ' in ambiguous
    assert all(run_id in ambiguous for run_id in ids[1:])
    assert "run_ffff" in refused("runs", "cancel", "run_ffff")
    assert "run_x" in refused("runs", "show", "run_x")
    assert command(folder, "runs", "show", "--last", first, **way).returncode == 2
    assert output("runs", "approve", "--last") == f"{newest}: queued\n"
    assert output("runs", "tail", "--last").endswith("completed\nresult  1\n")
    assert output("runs", "logs", "--last") == "line 1  number=1\n"
    assert "checkpoint" in output("runs", "steps", newest[: len("run_") + 16])
    for run_id in ids[:-1]:
        assert output("runs", "cancel", run_id[: len("run_") + 16]) == f"{run_id}: cancelled\n"
    listed = json.loads(
        output("runs", "list", "--status", "cancelled", "--status", "completed", "--limit", "4", "--json")
    )
    assert [run["id"] for run in listed] == ids[::-1]
    assert newest not in output("runs", "list", "--status", "cancelled")


def test_the_last_run_without_runs_is_an_error_with_the_cure(tmp_path: Path) -> None:
    database = write_tasks(tmp_path)
    assert command(tmp_path, "db", "upgrade", **database).returncode == 0
    done = command(tmp_path, "runs", "show", "--last", **database)
    assert (done.returncode, "runlane run NAME" in done.stderr) == (1, True), done.stderr


def test_exit_codes(folder: Path, server: ServerProcess) -> None:
    def code(*arguments: str) -> int:
        return command(folder, *arguments, RUNLANE_URL=server.url).returncode

    assert code("run", "refuse", "--follow") == 1
    assert code("run", "unknown") == 1
    assert code("run", "talk", "--input", "[1]") == 1
    assert code("run", "talk", "--input", "{") == 1
    assert code("run", "talk", "--input", "@nothing.json") == 1
    assert code("run") == 2
    assert code("runs", "tail", "run_x") == 1
    started = command(folder, "run", "talk", "--input", '{"count": 1}', "--hold", "--json", RUNLANE_URL=server.url)
    run_id = json.loads(started.stdout)["run_id"]
    late = command(folder, "runs", "tail", run_id, "--timeout", "0.2", RUNLANE_URL=server.url)
    assert (late.returncode, f"runlane runs tail {run_id}" in late.stderr) == (4, True)
    assert code("runs", "cancel", run_id) == 0
    assert code("runs", "tail", run_id) == 3


def test_doctor(folder: Path, server: ServerProcess, database: Mapping[str, str], tmp_path: Path) -> None:
    well = command(folder, "doctor", "--json", RUNLANE_URL=server.url, RUNLANE_CONCURENCY="1", **database)
    report = json.loads(well.stdout)
    levels = {finding["check"]: finding["level"] for finding in report["findings"]}
    assert (well.returncode, report["healthy"]) == (0, True), report
    assert (levels["database"], levels["schema"], levels["workers"], levels["server"]) == ("ok", "ok", "ok", "ok")
    assert levels["settings"] == "warning"
    nothing = command(tmp_path, "doctor")
    assert (nothing.returncode, list(tmp_path.iterdir())) == (0, []), nothing.stdout
    assert "processes poll the database" in nothing.stdout
    away = "postgresql://user@127.0.0.1:1/none"
    for broken in (
        {"RUNLANE_DATABASE_URL": away},
        {"RUNLANE_LEASE_SECONDS": "0"},
        {"RUNLANE_URL": "http://127.0.0.1:1"},
    ):
        ill = command(tmp_path, "doctor", **broken)
        assert ill.returncode == 1, ill.stdout
        assert "broken" in ill.stdout
    for pooled, wakes in (("false", "wake each other through Postgres"), ("true", "poll the database")):
        shown = command(tmp_path, "doctor", RUNLANE_DATABASE_URL=away, RUNLANE_PGBOUNCER=pooled)
        assert f"processes {wakes}" in shown.stdout
    slow = command(tmp_path, "doctor", RUNLANE_REDIS_URL="redis://127.0.0.1:1")
    assert (slow.returncode, "Nothing is lost without it" in slow.stdout) == (0, True), slow.stdout


def test_doctor_reports_runs_that_no_worker_can_execute(tmp_path: Path) -> None:
    database = write_tasks(tmp_path)
    (tmp_path / "other.py").write_text(
        "import asyncio\nfrom runlane import App\napp = App()\n\n"
        '@app.task("tolk")\nasync def tolk(ctx):\n    pass\n\n'
        'app.blocking(app.enqueue("tolk"))\n'
    )
    with serving(tmp_path, database, "dev", "tasks:app") as server:
        done = forking.run([sys.executable, "other.py"], cwd=tmp_path, env=environment(**database), check=False)
        assert done.returncode == 0
        output = command(tmp_path, "doctor", RUNLANE_URL=server.url, **database)
        assert output.returncode == 1, output.stdout
        wanted = '1 runs in the lane default wait for the task "tolk", which no live worker of this lane has'
        assert f'{wanted} (did you mean "talk"?)' in output.stdout
        by_server = command(tmp_path, "doctor", RUNLANE_URL=server.url)
        assert (by_server.returncode, wanted in by_server.stdout) == (1, True), by_server.stdout
        (listed,) = json.loads(command(tmp_path, "workers", "--json", **database).stdout)
        assert [name for name in listed["targets"] if not name.startswith("runlane.")] == ["refuse", "talk"]


def test_looking_does_not_load_what_it_does_not_use(folder: Path, database: Mapping[str, str]) -> None:
    for arguments, unwanted in (
        (["--help"], "sqlalchemy fastapi httpx2 pydantic rich"),
        (
            ["runs", "list"],
            (
                "fastapi starlette uvicorn httpx2 redis asyncpg structlog rich "
                "runlane.app runlane.worker runlane.maintenance"
            ),
        ),
        (["run", "talk", "--url", "http://127.0.0.1:1", "--input", "1"], "sqlalchemy fastapi asyncpg redis"),
        (
            ["worker", "--idle-exit"],
            (
                "alembic cryptography fastapi httpx2 langgraph mcp opentelemetry.sdk pydantic_ai redis rich starlette "
                "uvicorn runlane.api.server runlane.orchestration.executor"
            ),
        ),
    ):
        program = (
            "import sys, atexit\n"
            f"atexit.register(lambda: print([n for n in {unwanted.split()!r} if n in sys.modules], file=sys.stderr))\n"
            f"sys.argv = {['runlane', *arguments]!r}\nfrom runlane.cli import main\nmain()"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env=environment(**database),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr.splitlines()[-1] == "[]", (arguments, done.stderr)


def test_agents_need_no_app(tmp_path: Path) -> None:
    (tmp_path / "definitions" / "agents").mkdir(parents=True)
    agent = {"id": "host", "model": "scripted", "answers": ["Hello."]}
    (tmp_path / "definitions" / "agents" / "host.json").write_text(json.dumps(agent))
    with serving(tmp_path, {}, "dev") as server:
        chat = command(tmp_path, "chat", "host", given="hi\n", RUNLANE_URL=server.url)
    assert (chat.returncode, chat.stdout.strip()) == (0, "Hello."), chat.stderr
