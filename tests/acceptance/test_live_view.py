"""The live view on a real terminal: events scroll by, a bar moves, and the bar is gone at the end."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path

from tests import forking
from tests.server_process import command, environment, serving, write_tasks


def test_a_run_on_a_terminal(tmp_path: Path) -> None:
    database = write_tasks(tmp_path)
    with serving(tmp_path, database, "dev", "tasks:app") as server:
        ours, theirs = pty.openpty()
        asked = ["run", "talk", "--input", '{"count": 8, "pause_seconds": 0.1}', "--hold", "--follow"]
        watching = forking.Popen(
            [sys.executable, "-m", "runlane", *asked, "--url", server.url],
            cwd=tmp_path,
            env=environment(TERM="xterm", COLUMNS="160"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        seen, held = b"", True
        try:
            while piece := os.read(ours, 65536):
                seen += piece
                # The run begins once it is watched, because late readers miss the live progress.
                if held and b"awaiting_approval" in seen:
                    held = False
                    (run,) = json.loads(command(tmp_path, "runs", "list", "--json", **database).stdout)
                    assert command(tmp_path, "runs", "approve", run["id"], **database).returncode == 0
        except OSError:
            pass  # the other side is closed
        finally:
            os.close(ours)
        assert watching.wait(60) == 0, seen.decode()
    text = seen.decode()
    assert "line 8" in text
    assert "attempt 1" in text
    assert "8 of 8" in text
    assert text.rstrip().endswith("result  8")
