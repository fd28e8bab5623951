"""Call a metered provider without end, CALLERS at once, each call under the cluster's limits.

Usage: python -m tests.chaos.chaos_caller PORT CALLERS CREDENTIAL. An answer "slow" slows every caller down;
a provider that is gone ends the process.
"""

from __future__ import annotations

import asyncio
import os
import sys

from runlane.rate_limits.limiter import ClusterLimiter
from runlane.rate_limits.queue import LimitTimeout
from runlane.settings import load_settings
from runlane.store.sql.database import open_database


async def ignore(reason: str) -> None:
    """Ignore the reason of a wait."""


async def call(limiter: ClusterLimiter, port: int, credential: str) -> None:
    try:
        slot = await limiter.acquire(credential, tokens=10, timeout_seconds=30, on_wait=ignore)
    except LimitTimeout as wait:
        await asyncio.sleep(wait.retry_in_seconds)
        return
    answer = b""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{os.getpid()}\n".encode())
        answer = await reader.read()
        writer.close()
        if answer == b"slow":
            await limiter.slow_down(credential, None, "429 Too Many Requests")
    finally:
        await slot.release(10, succeeded=answer == b"done")


async def main(port: int, callers: int, credential: str) -> None:
    settings = load_settings()
    database = await open_database(settings)
    limiter = ClusterLimiter(database)

    async def keep_calling() -> None:
        while True:
            await call(limiter, port, credential)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(keep_calling())


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
