"""Two processes on one SQLite file: a run that one stores wakes the idle worker of the other before its poll."""

from __future__ import annotations

from runlane import App, Context, Status
from runlane.store.queue.lanes import LaneChange, declare_lanes, set_lane
from tests.harness import settings_for
from tests.integration.process import Process


async def test_an_idle_worker_starts_runs_of_another_process_before_it_polls(sqlite_url: str) -> None:
    settings = settings_for(sqlite_url)
    process, other = Process(settings), App(settings)

    @process.app.task("work")
    @other.task("work")
    async def work(ctx: Context) -> str:
        return "done"

    try:
        database = await process.app.database()
        await declare_lanes(database, {"default"})
        # Twice as long as the test waits for the run.
        await set_lane(database, "default", LaneChange(poll_interval_ms=120_000))
        await process.start()
        await process.run("work")
        # Several, because the claim that follows the end of a run may find the next one.
        for _ in range(5):
            run_id = (await other.enqueue("work")).run_id
            assert (await process.end(run_id)).status is Status.COMPLETED
    finally:
        await other.close()
        await process.stop()
