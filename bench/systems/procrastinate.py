"""Procrastinate: durable on the same Postgres, with its own worker command and the compiled psycopg."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import procrastinate
from procrastinate.types import JSONDict

from bench import notify

BULK_SIZE = 1000


async def noop(key: int) -> None:
    notify.count()


async def stamp(key: int) -> None:
    notify.send("started", key)


async def hold(key: int) -> None:
    notify.send("started", key)
    await asyncio.sleep(600)


TASKS = {"noop": noop, "stamp": stamp, "hold": hold}


def make_app(database_url: str) -> procrastinate.App:
    """Return an app with the tasks above."""
    made = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=database_url))
    for name, function in TASKS.items():
        made.task(name=name)(function)
    return made


app = make_app(os.environ.get("BENCH_DATABASE_URL", ""))


class ProcrastinateClient:
    """Defers through an app."""

    def __init__(self, app: procrastinate.App) -> None:
        self._app = app

    async def accept(self, task: str, key: int) -> None:
        await self._app.tasks[task].defer_async(key=key)

    async def accept_many(self, count: int) -> None:
        for start in range(0, count, BULK_SIZE):
            bodies: list[JSONDict] = [{"key": key} for key in range(start, min(start + BULK_SIZE, count))]
            await self._app.tasks["noop"].batch_defer_async(*bodies)


class Procrastinate:
    """Procrastinate on Postgres; its worker listens for notifications and polls every 5 s."""

    name = "procrastinate"
    bulk = True
    drained_sql: str | None = (
        "select count(*) filter (where type = 'succeeded') as n, "
        "extract(epoch from min(at) filter (where type = 'started'))::float8 as first, "
        "extract(epoch from max(at) filter (where type = 'succeeded'))::float8 as last from procrastinate_events"
    )

    def __init__(self, database_url: str) -> None:
        self._url = database_url

    def worker(self, concurrency: int | None) -> Sequence[str]:
        slots = [] if concurrency is None else ["--concurrency", str(concurrency)]
        command = ["-m", "procrastinate", "--app", "bench.systems.procrastinate.app", "--log-level", "warning"]
        return [*command, "worker", *slots]

    async def prepare(self) -> None:
        made = make_app(self._url)
        async with made.open_async():
            await made.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def client(self, *, with_worker: bool = False) -> AsyncGenerator[ProcrastinateClient]:
        made = make_app(self._url)
        async with made.open_async():
            if not with_worker:
                yield ProcrastinateClient(made)
                return
            worker = asyncio.create_task(made.run_worker_async(install_signal_handlers=False))
            try:
                yield ProcrastinateClient(made)
            finally:
                worker.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await worker
