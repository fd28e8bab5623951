"""What each command acts on: every command is in the table of the reference, and behaves as the table describes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Generator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperArgument
from typer.testing import CliRunner

from runlane.cli.commands import cli
from runlane.errors import RunlaneError
from runlane.settings import load_settings
from tests.cli_commands import leaf_commands

REFERENCE = Path(__file__).parents[2] / "docs/reference/cli.md"
ANSWER = json.dumps({"type": "about:blank", "title": "No", "status": 401, "code": "unauthorized", "detail": "No."})
# Arguments by name, where a word is not enough.
GIVEN = {
    "file": "bundle.json",
    "exported": "memory.json",
    "credential": "openai",
    "value": "1",
    "max_running": "1",
    "permissions": "runs:read",
    "role": "viewer",
    "from_step": "a",
    "server": "github",
    "action": "cancel",
    "held": "send",
    "verifier": "bearer",
    "kind": "agents",
    "since": "2026-01-31T12:00:00Z",
}
EXTRA: Mapping[str, list[str]] = {
    "chat": ["--message", "hello"],
    # Another program may use the default port.
    "serve": ["--port", "0"],
    "runs resume": ["--answer", "yes"],
    "lanes set": ["--max-slots", "1"],
    "limits set": ["--in-flight", "1"],
    "tenants set": ["--name", "Acme"],
    "bulk start": ["--task", "job"],
    "admin drain": ["wrk_1"],
    "dead-letters retry": ["--code", "timeout"],
    "dead-letters discard": ["--code", "timeout"],
    "dead-letters ack": ["--code", "timeout"],
    "webhooks set": ["--rate", "1"],
    "quotas set": ["5"],
    "runs tag": ["--add", "nightly"],
    "links create": ["--answer", "yes"],
    "schedules create": ["--task", "job", "--every", "60"],
    "schedules set": ["--every", "60"],
    "schedules preview": ["--every", "60"],
    "memory create-entry": ["a fact"],
    "memory correct-entry": ["a fact"],
    "memory put-context": ["a document"],
}


COMMANDS = {" ".join(path): command for path, command in leaf_commands()}


def _table() -> dict[str, str]:
    section = REFERENCE.read_text().partition("## What a command acts on")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \| (.+?) \|$", section, re.MULTILINE)
    return {name: acts_on for names, acts_on in rows for name in re.findall(r"`(.+?)`", names)}


TABLE = _table()
ON_A_SERVER = sorted(name for name, acts_on in TABLE.items() if "server" in acts_on)
ON_A_SERVER_ALONE = {name for name, acts_on in TABLE.items() if acts_on == "a server"}
ON_A_DATABASE = sorted(name for name, acts_on in TABLE.items() if acts_on == "a database")
ON_FILES = sorted(name for name, acts_on in TABLE.items() if acts_on in ("files", "nothing"))


def test_every_command_is_in_the_table() -> None:
    assert set(TABLE) == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_takes_a_url_if_it_can_use_a_server(name: str) -> None:
    urls = [parameter for parameter in COMMANDS[name].params if parameter.name == "url"]
    assert [url.envvar for url in urls] == (["RUNLANE_URL"] if name in ON_A_SERVER else [])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with definitions and a bundle, and no database."""
    monkeypatch.chdir(tmp_path)
    agents = tmp_path / "definitions" / "agents"
    agents.mkdir(parents=True)
    (agents / "writer.json").write_text('{"id": "writer"}')
    (tmp_path / "bundle.json").write_text('{"runlane_export": true, "openapi": "3.0.0", "paths": {}}')
    memory = {"id": "mem_1", "tenant": "default", "vault_id": "vault_1", "title": "notes", "memory_type": "notes"}
    memory |= {"description": "", "created_at": "2026-01-31T12:00:00Z", "last_seq": 1}
    fragment = {"name": "context", "content": "x", "sha256": "", "size": 1, "updated_at": "2026-01-31T12:00:00Z"}
    exported = {"memory": memory, "entries": [], "fragments": [{**fragment, "seq": 1}]}
    (tmp_path / "memory.json").write_text(json.dumps(exported))
    for variable in ("RUNLANE_DATABASE_URL", "RUNLANE_URL", "RUNLANE_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.fixture
def asked() -> Generator[tuple[str, list[str]]]:
    """A server that answers every request with 401, and the paths that it was asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def _refuse(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", "0")))
            paths.append(self.path)
            self.send_response(401)
            self.send_header("content-type", "application/problem+json")
            self.send_header("content-length", str(len(ANSWER)))
            self.end_headers()
            self.wfile.write(ANSWER.encode())

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _refuse  # noqa: N815 - the names of http.server

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of http.server
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _arguments(name: str) -> list[str]:
    given = name.split()
    for parameter in COMMANDS[name].params:
        if parameter.required:
            value = GIVEN.get(parameter.name or "", "name")
            given += [value] if isinstance(parameter, TyperArgument) else [parameter.opts[0], value]
    return given + EXTRA.get(name, [])


def _invoke(name: str, **variables: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, _arguments(name), env=variables, input="a value of secrets\n")
    if done.exception is not None and not isinstance(done.exception, (SystemExit, RunlaneError)):
        raise done.exception
    return done.exit_code, f"{done.output}{done.exception or ''}"


@pytest.mark.parametrize("name", ON_A_SERVER)
def test_the_server_of_runlane_url_is_used(name: str, project: Path, asked: tuple[str, list[str]]) -> None:
    url, paths = asked
    code, output = _invoke(name, RUNLANE_URL=url)
    assert code == 1, output
    assert paths, output
    assert not (project / ".runlane").exists()


@pytest.mark.parametrize("name", [name for name in ON_A_DATABASE if name != "dev"])
def test_a_command_that_cannot_use_a_server_refuses_it(name: str, project: Path, asked: tuple[str, list[str]]) -> None:
    url, paths = asked
    code, output = _invoke(name, RUNLANE_URL=url)
    assert code == 1
    assert f'RUNLANE_URL names the server "{url}", but runlane {name} acts on a database.' in output
    assert not paths
    assert not (project / ".runlane").exists()


@pytest.mark.parametrize("name", ON_FILES)
def test_a_command_on_files_needs_no_database(name: str, project: Path, asked: tuple[str, list[str]]) -> None:
    url, paths = asked
    _invoke(name, RUNLANE_URL=url)
    assert not paths
    assert not (project / ".runlane").exists()


# These store something that does not depend on anything else being there.
CREATING = {
    *(
        "sync",
        "bundle import",
        "secrets set",
        "lanes set",
        "limits set",
        "concurrency-limits set",
        "keys create",
        "tenants create",
        "roles set",
        "schedules create",
        "schedules preview",
        "webhook-sources set",
        "webhooks create",
        "memory create-user",
        "memory create-vault",
        "memory create-memory",
    ),
}


@pytest.mark.parametrize("name", sorted({*ON_A_SERVER} - CREATING - ON_A_SERVER_ALONE))
def test_a_command_that_has_nothing_to_show_creates_no_database(name: str, project: Path) -> None:
    (project / "definitions").rename(project / "elsewhere")
    code, output = _invoke(name)
    assert not (project / ".runlane").exists()
    if name != "doctor":
        assert code == 1
        assert f"The database {load_settings().shown_database} does not exist in this folder." in output


def test_a_command_that_creates_the_database_reports_it(project: Path) -> None:
    code, output = _invoke("sync")
    assert code == 0
    assert f"Created the database {load_settings().shown_database}." in output
    assert "Created" not in _invoke("sync")[1]
