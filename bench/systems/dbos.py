"""DBOS: durable workflows on the same Postgres. Its worker is a process that launches it, as in its guide.

The workflow has ten empty steps, as plain functions, which DBOS runs in threads, or as async functions.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from dbos import DBOS, DBOSClient, EnqueueOptions, run_dbos_database_migrations

STEPS = 10
QUEUE = "bench"
_IN_FLIGHT = 16


@DBOS.step()
def empty_step(number: int) -> int:
    return number


@DBOS.workflow(name="plain")
def ten_steps() -> int:
    return sum(empty_step(number) for number in range(STEPS))


@DBOS.step()
async def empty_step_async(number: int) -> int:
    return number


@DBOS.workflow(name="async")
async def ten_steps_async() -> int:
    total = 0
    for number in range(STEPS):
        total += await empty_step_async(number)
    return total


class DbosClient:
    """Enqueues through DBOS's client."""

    def __init__(self, client: DBOSClient) -> None:
        self._client = client

    async def start_many(self, flow: str, count: int) -> None:
        """Enqueue workflows of ten steps, of one of the two kinds."""
        options: EnqueueOptions = {"queue_name": QUEUE, "workflow_name": flow}
        for start in range(0, count, _IN_FLIGHT):
            together = range(start, min(start + _IN_FLIGHT, count))
            await asyncio.gather(*(self._start(options) for _ in together))

    async def _start(self, options: EnqueueOptions) -> None:
        await cast("Any", self._client).enqueue_async(options)


class Dbos:
    """DBOS on Postgres."""

    name = "dbos"
    ended_sql = (
        "select count(*) as n, min(started_at_epoch_ms) / 1e3 as first, max(updated_at) / 1e3 as last "
        "from dbos.workflow_status where status = 'SUCCESS'"
    )

    def __init__(self, database_url: str) -> None:
        self._url = database_url

    def worker(self) -> Sequence[str]:
        return ["-m", "bench.systems.dbos"]

    async def prepare(self) -> None:
        await asyncio.to_thread(run_dbos_database_migrations, self._url)

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[DbosClient]:
        client = DBOSClient(system_database_url=self._url)
        try:
            yield DbosClient(client)
        finally:
            client.destroy()


def main() -> None:
    """Run the worker process with its defaults, except the log level."""
    DBOS(config={"name": "bench", "system_database_url": os.environ["BENCH_DATABASE_URL"], "log_level": "WARNING"})
    DBOS.launch()
    DBOS.register_queue(QUEUE)
    threading.Event().wait()


if __name__ == "__main__":
    main()
