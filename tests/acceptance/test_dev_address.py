"""Commands in a folder reach the `runlane dev` of that folder, whatever its port is, and never that of another one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Generator
from pathlib import Path

import pytest

from runlane.cli import target
from runlane.cli.dev_record import RECORD, DevServer, find_dev_server, write_record
from runlane.cli.target import server_for, server_or_database
from runlane.errors import ConfigurationError
from tests.acceptance.conftest import Shell
from tests.server_process import ServerProcess, command, serving, write_tasks

USUAL_PORT = 8765


@pytest.fixture
def usual_port_taken() -> Generator[None]:
    """Make the default port of dev taken, by this test or by another program."""
    with socket.socket() as holder:
        with contextlib.suppress(OSError):
            holder.bind(("127.0.0.1", USUAL_PORT))
            holder.listen()
        yield


@pytest.fixture
def dev(tmp_path: Path) -> Generator[tuple[Path, ServerProcess]]:
    """A project with a running dev."""
    folder = tmp_path / "project"
    folder.mkdir()
    write_tasks(folder)
    with serving(folder, {}, "dev", "tasks:app") as server:
        yield folder, server


@pytest.mark.usefixtures("usual_port_taken")
def test_commands_find_a_dev_that_had_to_take_another_port(embedded: Shell) -> None:
    child = embedded.start_dev("tasks:app")
    output = embedded.until(child, "API on http://127.0.0.1:")
    assert "The default port 8765 is taken." in output
    url = json.loads((embedded.folder / RECORD).read_text())["url"]
    assert f"This server is {url}; commands in this folder use it." in output

    started = embedded.run("run", "greet", "--input", '{"name": "Ada"}', "--follow")
    assert started.err.splitlines()[0] == (
        f"Server: {url}, runlane dev of this folder, database {Path('.runlane/runlane.db')}"
    )
    assert "Server:" not in started.out
    assert len(embedded.run("runs", "list", "--json").json) == 1

    code, _ = embedded.finish(child)
    assert code == 0
    assert not (embedded.folder / RECORD).exists()


def test_a_requested_port_that_is_taken_is_an_error(dev: tuple[Path, ServerProcess], tmp_path: Path) -> None:
    _, server = dev
    done = command(tmp_path, "dev", "--port", str(server.port))
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{server.port}" in done.stderr
    assert "Choose another with --port." in done.stderr


def test_a_named_server_wins_over_the_folder(dev: tuple[Path, ServerProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, server = dev
    monkeypatch.chdir(folder)
    assert server_for(None, "key").url == server.url
    assert server_for(None, "key").api_key is None, "the key of another server is not sent to dev"
    assert server_for("http://named:1", "key").url == "http://named:1"
    assert server_or_database(None, None) == (server.url, None)
    monkeypatch.setenv("RUNLANE_DATABASE_URL", "sqlite:///other.db")
    assert server_or_database(None, None) == (None, None)


def test_a_dev_of_another_folder_is_not_used(
    dev: tuple[Path, ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, server = dev
    monkeypatch.setattr(target, "DEFAULT_URL", server.url)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with pytest.raises(ConfigurationError, match="is runlane dev of another folder"):
        server_for(None, None)
    inner = folder / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    assert server_for(None, None).url == server.url


def test_a_record_that_is_out_of_date_is_ignored(
    dev: tuple[Path, ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, server = dev
    record = json.loads((folder / RECORD).read_text())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert find_dev_server() is None
    write_record(DevServer(server.url, os.getpid(), "another instance", "db"))
    assert find_dev_server() is None
    write_record(DevServer(server.url, record["pid"], record["instance"], "db"))
    assert find_dev_server() is not None
    (elsewhere / RECORD).write_text("{")
    assert find_dev_server() is None
    os.kill(record["pid"], signal.SIGKILL)
    server.stop()
    assert (folder / RECORD).exists()
    done = command(folder, "runs", "list", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
