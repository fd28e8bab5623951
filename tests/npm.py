"""Packages of npm for tests: installed from a lock file beside the tests, once."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

WITH_NODE: Final = Path(__file__).resolve().parents[1] / ".ci" / "with-node"


def install(folder: Path, finish: Callable[[], None] | None = None) -> None:
    """Install the packages of a folder's lock file if they are not those that are installed, then call `finish`."""
    lock = (folder / "package-lock.json").read_text()
    stamp = folder / "node_modules" / ".installed"
    # Several processes of a suite may need it at once.
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == lock:
            return
        run(folder, "npm", "ci", "--silent")
        if finish is not None:
            finish()
        stamp.write_text(lock)


def run(folder: Path, *command: str) -> None:
    """Run a command of Node in a folder."""
    done = subprocess.run([WITH_NODE, *command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)} failed: {done.stdout}{done.stderr}"
