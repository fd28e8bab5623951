"""DBOS: durable workflows on the same Postgres. Its worker is a process that launches it, as its guide shows.

The workflow has ten steps that do nothing: once as plain functions, which DBOS runs in threads, and once as async ones.
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
def nothing(number: int) -> int:
    return number


@DBOS.workflow(name="plain")
def ten_steps() -> int:
    return sum(nothing(number) for number in range(STEPS))


@DBOS.step()
async def nothing_async(number: int) -> int:
    return number


@DBOS.workflow(name="async")
async def ten_steps_async() -> int:
    total = 0
    for number in range(STEPS):
        total += await nothing_async(number)
    return total


class DbosClient:
    """Enqueues through DBOS's client."""

    def __init__(self, client: DBOSClient) -> None:
        self._client = client

    async def start_many(self, flow: str, count: int) -> None:
        """Hand in workflows of ten steps, of one of the two kinds."""
        options: EnqueueOptions = {"queue_name": QUEUE, "workflow_name": flow}
        for start in range(0, count, _IN_FLIGHT):
            together = range(start, min(start + _IN_FLIGHT, count))
            await asyncio.gather(*(self._start(options) for _ in together))

    async def _start(self, options: EnqueueOptions) -> None:
        await cast("Any", self._client).enqueue_async(options)


class Dbos:
    """On Postgres."""

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
    """The worker process: everything by default but the log, which would tell of every start."""
    DBOS(config={"name": "bench", "system_database_url": os.environ["BENCH_DATABASE_URL"], "log_level": "WARNING"})
    DBOS.launch()
    DBOS.register_queue(QUEUE)
    threading.Event().wait()


if __name__ == "__main__":
    main()
