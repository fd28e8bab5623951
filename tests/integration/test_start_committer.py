"""Requests that start runs of threads are accepted whenever they arrive."""

from __future__ import annotations

import asyncio

from runlane.domain.graph import GraphRequest, graph_target
from runlane.store.sql.database import open_database
from runlane.store.threads.start_committer import BATCHES, StartCommitter
from runlane.store.threads.thread_start import ThreadStart
from tests.harness import Store, new_run, settings_for


async def test_a_request_that_arrives_as_the_last_batches_end_is_answered(sqlite_url: str) -> None:
    database = await open_database(settings_for(sqlite_url))
    try:
        # The request arrives that many iterations of the event loop after clients have left, before and after all work.
        for iterations in range(8):
            committer = StartCommitter(database, lambda lanes: None)
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


async def test_the_runs_of_one_batch_ring_once_for_each_graph(store: Store) -> None:
    rung: list[str] = []
    committer = StartCommitter(store.database, rung.extend)
    await asyncio.gather(*(committer.start_runs([_start(number, f"g{number % 2}")]) for number in range(6)))
    assert await store.count("thread_runs") == 6
    assert rung == ["default", "default"]


def _start(number: int, graph_id: str) -> ThreadStart:
    run = new_run(target=graph_target(graph_id), input=GraphRequest().to_json())
    return ThreadStart("default", f"t{number}", "a", graph_id, run, GraphRequest(), creates=True)
