"""The files of a project, and what a command reports before it does anything: modes, full disks, misspelt settings."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

from tests import forking
from tests.acceptance.conftest import Shell
from tests.server_process import environment, serving, write_tasks


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_in_the_folder_are_for_their_owner_only(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    with serving(tmp_path, {}, "dev", "tasks:app"):
        own = tmp_path / ".runlane"
        assert _mode(own) == 0o700
        assert (own / ".gitignore").read_text() == "*\n"
        files = [path for path in own.rglob("*") if path.is_file() and path.name != ".gitignore"]
        assert {"runlane.db", "runlane.db-wal", "runlane.db-shm", "dev.json"} <= {path.name for path in files}
        assert {path.name: oct(_mode(path)) for path in files if _mode(path) != 0o600} == {}


def test_a_full_disk_at_the_first_start_is_reported_in_a_sentence(embedded: Shell) -> None:
    # No file may become larger than this, in blocks of 1 kB; a full disk fails in the same places.
    for blocks in (0, 16, 64):
        done = subprocess.run(
            ["bash", "-c", f"ulimit -f {blocks}; exec {sys.executable} -m runlane db upgrade 2>err.txt"],
            cwd=embedded.folder,
            env=embedded.environment | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
        assert done.returncode != 0
    written = subprocess.run(
        ["bash", "-c", f"(ulimit -f 64; exec {sys.executable} -m runlane db upgrade 2>&1) | cat"],
        cwd=embedded.folder,
        env=embedded.environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert written.stdout.startswith("Error (configuration): The database file .runlane/runlane.db cannot be ")
    assert "Traceback" not in written.stdout
    embedded.run("db", "upgrade")


def test_a_misspelt_setting_is_reported_by_a_program_and_by_commands(embedded: Shell) -> None:
    embedded.environment["RUNLANE_CONCURENCY"] = "1"
    expected = 'RUNLANE_CONCURENCY is not a known setting and is ignored (did you mean "RUNLANE_CONCURRENCY"?).'
    done = embedded.python("import asyncio\nfrom tasks import app\nasyncio.run(app.connect())")
    assert done.code == 0, done.err
    assert expected in done.out + done.err
    child = embedded.start("worker", "tasks:app")
    assert "RUNLANE_CONCURENCY is not a known setting" in embedded.until(child, "worker_online")
    embedded.finish(child)
    listed = embedded.run("lanes", "list", "--json")
    assert listed.err == f"Warning: {expected}\n"


def test_a_key_on_the_command_line_is_warned_of(tmp_path: Path) -> None:
    done = forking.run(
        [sys.executable, "-m", "runlane", "runs", "list", "--api-key", "sk-rl-x"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "every process on this machine can see --api-key. Set RUNLANE_API_KEY instead." in done.stderr
