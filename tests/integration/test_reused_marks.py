"""A database server that crashes in the middle of a commit gives the transaction's number to another one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from typing import Any, cast
from uuid import uuid4

import asyncpg
import pytest

from runlane import App, Context, Run, Settings, Status, Unavailable, failpoints
from runlane.store.sql.migrate import upgrade
from runlane.testing import PostgresServer


@pytest.fixture
def server() -> Generator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(autouse=True)
def _no_hook() -> Generator[None]:
    yield
    failpoints.install(None)


def crash(server: PostgresServer, url: str) -> None:
    """End the server without a warning, and let others use the next transaction numbers when it is back."""

    async def use_numbers() -> None:
        connection: Any = await cast("Any", asyncpg).connect(url)
        await connection.execute("create table if not exists used (n integer)")
        for n in range(20):
            await connection.execute("insert into used values ($1)", n)
        await connection.close()

    server.kill()
    server.start()
    thread = threading.Thread(target=lambda: asyncio.run(use_numbers()))
    thread.start()
    thread.join()


async def wait_out(app: App, run_id: str) -> Run:
    """Wait for the end of a run while the database may be away."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await app.wait(run_id)
            except Unavailable:
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("point", ["accept.before_commit", "claim.before_commit", "finish.before_commit"])
async def test_a_commit_that_was_lost_in_a_crash_is_not_taken_for_done(server: PostgresServer, point: str) -> None:
    url = server.create_database(f"crash_{uuid4().hex}")
    settings = Settings(database_url=url, worker_health_port=0, lease_seconds=20)  # type: ignore[arg-type]
    await upgrade(settings)
    app = App(settings)

    @app.task("quick")
    async def quick(ctx: Context) -> str:
        return "done"

    crashes: list[str] = []

    def hook(reached: str) -> None:
        if reached == point and not crashes:
            crashes.append(reached)
            crash(server, url)

    async with app:
        worker = await app.worker()
        await worker.start()
        try:
            failpoints.install(hook)
            # With a key, so that it is stored in a transaction of more than one statement.
            run = await app.enqueue("quick", ordering_key="key")
            ended = await wait_out(app, run.id)
        finally:
            failpoints.install(None)
            await worker.stop(0)
    assert crashes == [point]
    assert (ended.status, ended.result, ended.losses) == (Status.COMPLETED, "done", 0)
