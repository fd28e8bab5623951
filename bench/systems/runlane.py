"""Runlane: what is measured. Its worker command, its defaults; no setting is changed for the benchmark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from bench import note
from runlane import App, Context
from runlane.settings import load_settings
from runlane.store.migrate import upgrade

app = App()


@app.task("noop")
async def noop(ctx: Context, key: int) -> None:
    note.count()


@app.task("stamp")
async def stamp(ctx: Context, key: int) -> None:
    note.send("started", key)


@app.task("hold")
async def hold(ctx: Context, key: int) -> None:
    note.send("started", key)
    if ctx.attempt == 1:
        await asyncio.sleep(600)


class RunlaneClient:
    """Accepts through an App."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def accept(self, task: str, key: int) -> None:
        await self._app.enqueue(task, {"key": key})

    async def accept_many(self, count: int) -> None:
        await self._app.enqueue_many([("noop", {"key": key}) for key in range(count)])


class Runlane:
    """On Postgres."""

    name = "runlane"
    bulk = True
    drained_sql: str | None = (
        "select count(*) as n, min(claimed_at) / 1e6 as first, max(ended_at) / 1e6 as last "
        "from runs where status = 'completed'"
    )

    def __init__(self, database_url: str) -> None:
        self._settings = load_settings(database_url=database_url)

    def worker(self, concurrency: int | None) -> Sequence[str]:
        slots = [] if concurrency is None else ["--concurrency", str(concurrency)]
        return ["-m", "runlane", "worker", "bench.systems.runlane:app", *slots]

    async def prepare(self) -> None:
        await upgrade(self._settings)

    @asynccontextmanager
    async def client(self, *, with_worker: bool = False) -> AsyncGenerator[RunlaneClient]:
        mine = App(self._settings)
        mine.include(app)
        async with mine:
            if not with_worker:
                yield RunlaneClient(mine)
                return
            worker, duties = await mine.worker(), await mine.duties()
            await worker.start()
            for duty in duties:
                duty.start()
            try:
                yield RunlaneClient(mine)
            finally:
                await worker.stop(1)
                for duty in duties:
                    await duty.stop()
