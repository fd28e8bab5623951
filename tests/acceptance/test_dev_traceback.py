"""`runlane dev` shows a failing task as Python would: its error and its traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import forking

TASKS = """
import asyncio

from runlane import App, Context

app = App()


@app.task("boom", max_attempts=1)
async def boom(ctx: Context) -> None:
    raise ValueError("it went wrong")


async def main() -> None:
    async with app:
        accepted = await app.enqueue("boom")
        print(await app.wait(accepted.run_id, timeout=60))


if __name__ == "__main__":
    asyncio.run(main())
"""


def test_dev_shows_the_error_and_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "boom.py").write_text(TASKS)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RUNLANE_")}
    environment["RUNLANE_WORKER_HEALTH_PORT"] = "0"
    dev = forking.Popen(
        [sys.executable, "-m", "runlane", "dev", "boom:app"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        subprocess.run([sys.executable, "boom.py"], cwd=tmp_path, env=environment, timeout=120, check=True)
    finally:
        dev.terminate()
        try:
            output, _ = dev.communicate(timeout=60)
        finally:
            dev.kill()
    assert "error='ValueError: it went wrong'" in output
    assert 'raise ValueError("it went wrong")' in output
