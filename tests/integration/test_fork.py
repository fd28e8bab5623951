"""A process that used the bridge for blocking code may fork, as servers that load the app first do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal, sys
from runlane import App, Context, Settings

app = App(Settings(database_url=f"sqlite:///{sys.argv[1]}/runs.db", worker_health_port=0))

@app.task("quick")
async def quick(ctx: Context) -> None: ...

app.blocking(app.enqueue("quick"))
for uses_it in (True, False):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        if uses_it:
            app.blocking(app.enqueue("quick"))
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # or the next child prints it again
"""


def test_a_fork_can_enqueue_and_exit(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert answer.stdout.split() == ["0", "0"]
