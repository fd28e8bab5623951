"""Start runs by rules of flow control one after another, and retry while the database is away.

Usage: python -m tests.chaos.chaos_starter NAME COUNT. A process that was killed is started again with the same name and
repeats its starts with the same idempotency keys.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from runlane.errors import Unavailable, UniqueConflict
from tests.chaos import chaos_tasks


async def start(task: str, given: dict[str, Any], key: str | None) -> None:
    while True:
        try:
            await chaos_tasks.app.enqueue(task, given, idempotency_key=key)
        except Unavailable:
            await asyncio.sleep(0.1)
        except UniqueConflict:
            return
        else:
            return


async def main(name: str, count: int) -> None:
    async with chaos_tasks.app:
        for number in range(count):
            await start("gather", {"site": f"site-{number % 2}", "n": f"{name}-{number}"}, f"{name}-gather-{number}")
            await start("edit", {"doc": name, "n": number}, f"{name}-edit-{number}")
            await start("single", {"customer": f"customer-{number % 3}"}, None)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
