"""Cancels a run, and may be told to die in the middle of that: python -m tests.chaos.chaos_canceller RUN_ID."""

from __future__ import annotations

import asyncio
import sys

from tests.chaos.chaos_tasks import app


async def main(run_id: str) -> None:
    async with app:
        await app.cancel(run_id)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
