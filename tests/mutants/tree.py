"""A copy of the tree in which one bug at a time is planted, and a database server for its tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from runlane.testing import PostgresServer
from tests.mutants.catalog import Mutant

_PASSED, _FAILED = 0, 1
# The plugins that the suite needs. Those that only some tests need take seconds to load.
_PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout")


class Verdict(StrEnum):
    CAUGHT = "caught"
    SURVIVED = "survived"
    TOO_SLOW = "too slow"
    BROKEN = "broken"


class Tree:
    """A copy of the files that git tracks or would add, with one bug at a time."""

    def __init__(self, root: Path, database_url: str) -> None:
        self.root = root
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(root / "src"),
            "TEST_DATABASE_URL": database_url,
            "TMPDIR": str(root / "tmp"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        (root / "tmp").mkdir()

    def judge(self, mutant: Mutant, limit_seconds: float) -> tuple[Verdict, str]:
        """Run the tests of a bug while it is planted; the verdict, and what pytest printed.

        A test that hangs fails after half of the limit, so that a bug that makes it hang is caught.
        """
        path = self.root / mutant.file
        source = path.read_text()
        path.write_text(mutant.plant(source))
        try:
            return self.run(mutant.tests, limit_seconds, test_seconds=limit_seconds / 2)
        finally:
            path.write_text(source)

    def run(self, tests: Sequence[str], limit_seconds: float, *, test_seconds: float) -> tuple[Verdict, str]:
        """Run these tests. Any exit but "passed" and "failed", such as an import error, is not a verdict."""
        plugins = [option for name in (*_PLUGINS, "no:cacheprovider") for option in ("-p", name)]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            f"--timeout={test_seconds:g}",
            *plugins,
            *tests,
        ]
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(limit_seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
            output.seek(0)
            printed = output.read()
        if code is None:
            return Verdict.TOO_SLOW, printed
        return {_PASSED: Verdict.SURVIVED, _FAILED: Verdict.CAUGHT}.get(code, Verdict.BROKEN), printed


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it has started in its session."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def copied_tree(source: Path) -> Generator[Tree]:
    """Yield a copy of the tree; it and its server are removed at the end."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=source, check=True, capture_output=True, text=True).stdout.split("\0")
    with tempfile.TemporaryDirectory(prefix="runlane-mutants-") as directory:
        root = Path(directory)
        for name in names:
            if name and (source / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, root / name)
        # By content: a planted bug may have the size and, within a second, the time of the file that it replaces.
        compiling = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(root / "src")]
        subprocess.run(compiling, check=True)
        with PostgresServer() as server:
            yield Tree(root, server.url)
