"""Answers the question of a run as soon as a gate opens, as one of several people who are equally fast.

python -m tests.chaos.chaos_answerer RUN_ID NAME GATE; exits with 0 as the winner and with 9 as the loser.
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
        # Busy, so that all of them go in the same millisecond.
        while not (folder() / gate).exists():
            time.sleep(0)  # noqa: ASYNC251 - nothing else runs in this loop
        try:
            await app.resume(run_id, {"decision": "approve"}, answered_by=name)
        except WrongState:
            return LOST
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
