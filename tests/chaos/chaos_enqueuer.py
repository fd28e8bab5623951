"""Enqueue runs with ordering keys one after another, and retry while the database is away.

Usage: python -m tests.chaos.chaos_enqueuer NAME COUNT KEYS. Each run carries the name, key and number of its enqueuer,
so that tests can check the order, and an idempotency key, so that a repeated request does not double it.
"""

from __future__ import annotations

import asyncio
import random
import sys

from runlane.errors import Unavailable
from tests.chaos import chaos_tasks


async def main(name: str, count: int, keys: int) -> None:
    chance = random.Random(name)
    async with chaos_tasks.app as app:
        for number in range(count):
            key = f"key-{chance.randrange(keys)}"
            arguments = {"milliseconds": chance.uniform(20, 150), "label": f"{key}/{name}/{number:05}"}
            while True:
                try:
                    await app.enqueue("short", arguments, ordering_key=key, idempotency_key=f"{name}-{number}")
                except Unavailable:
                    await asyncio.sleep(0.1)
                else:
                    break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
