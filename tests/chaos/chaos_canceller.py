"""Cancel a run, with crash points: python -m tests.chaos.chaos_canceller RUN_ID."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from runlane import Unavailable
from tests.chaos.chaos_tasks import app


async def main(run_id: str) -> None:
    async with app:
        # A frozen worker may hold the run's row until the server ends its transaction.
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(Unavailable):
                    await app.cancel(run_id)
                    return


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
