"""A lane's stale timeout: an attempt without progress is interrupted, and the run is tried again."""

from __future__ import annotations

import asyncio

from runlane import Context, Status
from runlane.store.queue.lanes import LaneChange, set_lane
from runlane.store.queue.workers import list_workers
from tests.harness import eventually
from tests.integration.process import Process


async def test_a_stale_attempt_is_replaced_by_a_new_one(process: Process) -> None:
    begun = asyncio.Event()

    @process.app.task("job")
    async def job(ctx: Context) -> str:
        if ctx.attempt > 1:
            return "done"
        begun.set()
        await asyncio.sleep(600)
        return "never"

    await process.start()
    accepted = await process.app.enqueue("job")
    await eventually(begun.is_set, "the start of the code")
    store = await process.store()
    await store.sql("update runs set claimed_at = claimed_at - 360000000")
    await set_lane(store.database, "default", LaneChange(stale_timeout_minutes=5))
    run = await process.end(accepted.run_id)
    assert (run.status, run.result, run.failures) == (Status.COMPLETED, "done", 1)
    (first, _) = await process.app.attempts(accepted.run_id)
    assert first.error is not None
    assert first.error["message"] == "The attempt was without progress for 5 minutes."


async def test_a_worker_registers_the_address_of_its_health_endpoint(process: Process) -> None:
    process.settings = process.settings.model_copy(update={"worker_health_port": None})
    process.app = type(process.app)(process.settings)
    worker = await process.start()
    (row,) = await list_workers(await process.app.database())
    assert worker is not None
    assert row.health_address is not None
    host, _, port = row.health_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /health HTTP/1.1\r\n\r\n")
    assert b"200 OK" in await reader.readline()
    writer.close()
