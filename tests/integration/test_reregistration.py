"""A worker whose lease ended, for however short a time, continues under a new id and leaves nothing behind."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import asyncpg
import pytest

from runlane import App, Context, Settings, Status
from runlane.store.sql.migrate import upgrade
from runlane.testing import PostgresServer
from runlane.worker.worker import Worker


@pytest.fixture(scope="module")
def server() -> Generator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@asynccontextmanager
async def running(app: App) -> AsyncGenerator[Worker]:
    """A worker and the maintenance services of an app."""
    async with app:
        worker, duties = await app.worker(), await app.maintenance_services()
        await worker.start()
        for duty in duties:
            duty.start()
        try:
            yield worker
        finally:
            await worker.stop(0)
            for duty in duties:
                await duty.stop()


def add_tasks(app: App) -> App:
    @app.task("quick")
    async def quick(ctx: Context) -> int:
        return ctx.attempt

    return app


async def test_a_lease_that_ended_by_the_database_clock_does_not_stop_the_claims_forever(tmp_path: Path) -> None:
    # What a laptop sees when it wakes: the wall clock jumped, the monotonic clock did not.
    path = tmp_path / "runs.db"
    settings = Settings(
        database_url=f"sqlite:///{path}",  # type: ignore[arg-type]
        worker_health_port=0,
        # Rare: a renewal before the next claim would give the lease back before the worker noticed.
        heartbeat_seconds=5,
        reaper_seconds=60,
    )
    async with running(add_tasks(App(settings))) as worker:
        app = add_tasks(App(settings))
        before = worker.worker_id
        database = sqlite3.connect(path, timeout=30, isolation_level=None)
        database.execute("update workers set lease_until = 1")
        database.close()
        async with app:
            run = await app.enqueue("quick")
            ended = await app.wait(run.id, timeout=60)
    assert ended.status is Status.COMPLETED
    assert worker.worker_id != before


async def test_attempt_refused_after_the_deadline_is_taken_back(tmp_path: Path) -> None:
    settings = Settings(
        database_url=f"sqlite:///{tmp_path}/runs.db",  # type: ignore[arg-type]
        worker_health_port=0,
        lease_seconds=4,
        heartbeat_seconds=1,
    )
    app = App(settings)
    workers: list[Worker] = []

    @app.task("late")
    async def late(ctx: Context) -> int:
        if ctx.attempt == 1:
            # As when the thread that renews was starved past the deadline and then renews after all.
            incarnation = workers[0]._registration
            assert incarnation is not None
            incarnation.deadline = time.monotonic()
        return ctx.attempt

    async with running(app) as worker:
        workers.append(worker)
        ended = await app.wait((await app.enqueue("late")).id, timeout=60)
    assert (ended.status, ended.result) == (Status.COMPLETED, 2)


async def test_unexpected_database_error_does_not_end_the_heartbeat(server: PostgresServer) -> None:
    settings = Settings(
        database_url=server.create_database(f"lives_{uuid4().hex}"),  # type: ignore[arg-type]
        worker_health_port=0,
        lease_seconds=2,
        heartbeat_seconds=0.2,
    )
    await upgrade(settings)
    app = add_tasks(App(settings))
    async with running(app) as worker:
        before = worker.worker_id
        assert settings.database_url is not None
        operator: Any = await cast("Any", asyncpg).connect(settings.database_url.get_secret_value())
        await operator.execute("alter table workers rename to workers_elsewhere")
        async with asyncio.timeout(60):
            while worker.worker_id == before:  # noqa: ASYNC110 - the worker has no event for it
                await asyncio.sleep(0.05)
        await operator.execute("alter table workers_elsewhere rename to workers")
        await operator.close()
        ended = await app.wait((await app.enqueue("quick")).id, timeout=60)
    assert ended.status is Status.COMPLETED
    assert worker.worker_id != before
