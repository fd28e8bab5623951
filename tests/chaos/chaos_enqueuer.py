"""An enqueuer process: accepts runs over ordering keys one after another, and survives a database that is away.

Usage: python chaos_enqueuer.py NAME COUNT KEYS. Each run carries the enqueuer's name, key and place, so that order can
be checked, and an idempotency key, so that asking again after a lost answer does not double it.
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
        for place in range(count):
            key = f"key-{chance.randrange(keys)}"
            arguments = {"milliseconds": chance.uniform(20, 150), "label": f"{key}/{name}/{place:05}"}
            while True:
                try:
                    await app.enqueue("short", arguments, ordering_key=key, idempotency_key=f"{name}-{place}")
                except Unavailable:
                    await asyncio.sleep(0.1)
                else:
                    break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
