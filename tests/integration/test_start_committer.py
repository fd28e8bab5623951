"""Requests that start runs of threads are accepted whenever they arrive."""

from __future__ import annotations

import asyncio

from runlane.store.sql.database import open_database
from runlane.store.threads.start_committer import BATCHES, StartCommitter
from tests.harness import settings_for


async def test_a_request_that_arrives_as_the_last_batches_end_is_answered(sqlite_url: str) -> None:
    database = await open_database(settings_for(sqlite_url))
    try:
        # The request arrives that many iterations of the event loop after clients have left, before and after all work.
        for iterations in range(8):
            committer = StartCommitter(database)
            left = [asyncio.create_task(committer.start_runs([])) for _ in range(BATCHES)]
            await asyncio.sleep(0)
            for task in left:
                task.cancel()
            for _ in range(iterations):
                await asyncio.sleep(0)
            async with asyncio.timeout(60):
                assert await committer.start_runs([]) == []
            await asyncio.gather(*left, return_exceptions=True)
    finally:
        await database.close()
