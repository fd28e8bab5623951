"""Answer the question of a run as soon as a gate opens, in competition with other processes.

Usage: python -m tests.chaos.chaos_answerer RUN_ID NAME GATE. The exit code is 0 for the winner and 9 for a loser.
"""

from __future__ import annotations

import asyncio
import sys
import time

from runlane import WrongState
from tests.chaos.chaos_tasks import app, folder

LOST = 9


async def main(run_id: str, name: str, gate: str) -> int:
    async with app:
        (folder() / f"{gate}-{name}").touch()
        # A busy loop, so that all processes answer in the same millisecond.
        while not (folder() / gate).exists():
            time.sleep(0)  # noqa: ASYNC251 - nothing else runs in this loop
        try:
            await app.resume(run_id, {"decision": "approve"}, answered_by=name)
        except WrongState:
            return LOST
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
