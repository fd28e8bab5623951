"""Changes that meet others at a bad moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import uuid4

import asyncpg
import pytest

from runlane import App, Context, Fail, Settings, Status, Unavailable
from runlane.store.committer import Committer
from runlane.store.database import CommitInDoubt, Database, Session
from runlane.store.migrate import upgrade
from runlane.store.postgres import PostgresSession
from runlane.store.statement import Statement
from runlane.testing import PostgresServer

T = TypeVar("T")


@pytest.fixture(scope="module")
def server() -> Generator[PostgresServer]:
    with PostgresServer() as server:
        yield server


async def test_cancel_meets_a_run_that_is_put_back_between_its_statements(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.create_database(f"changes_{uuid4().hex}")
    settings = Settings(database_url=url, worker_health_port=0)  # type: ignore[arg-type]
    await upgrade(settings)
    app = App(settings)

    @app.task("quick")
    async def quick(ctx: Context) -> None: ...

    async with app:
        run = await app.enqueue("quick")
        other: Any = await cast("Any", asyncpg).connect(url)
        await other.execute("update runs set status = 'running', attempt = 1, worker_id = 'wrk_x'")
        fetch = PostgresSession.fetch
        seen: list[str] = []

        async def fetch_and_put_back(self: PostgresSession, statement: Statement, *args: Any, **params: Any) -> Any:
            rows = await fetch(self, statement, *args, **params)
            seen.append(statement.name)
            if seen.count("cancel_waiting") == 1 and statement.name == "cancel_waiting":
                await other.execute("update runs set status = 'scheduled', due_at = 1")
            return rows

        monkeypatch.setattr(PostgresSession, "fetch", fetch_and_put_back)
        change = await app.cancel(run.id)
        await other.close()
        assert change.status is Status.CANCELLED
        assert (await app.get(run.id)).status is Status.CANCELLED


async def test_retry_of_a_run_that_failed_after_a_cancel_was_asked_for_runs(tmp_path: Path) -> None:
    app = App(Settings(database_url=f"sqlite:///{tmp_path}/runs.db", worker_health_port=0))  # type: ignore[arg-type]
    begun = asyncio.Event()

    @app.task("stubborn")
    async def stubborn(ctx: Context) -> str:
        if ctx.attempt == 1:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                raise Fail("ended by itself")
        await asyncio.sleep(1.5)  # longer than a heartbeat, which would bring the old request
        return "done"

    async with app:
        worker = await app.worker()
        await worker.start()
        try:
            run = await app.enqueue("stubborn")
            await begun.wait()
            await app.cancel(run.id)
            assert (await app.wait(run.id, timeout=30)).status is Status.FAILED
            await app.retry(run.id)
            assert (await app.wait(run.id, timeout=30)).status is Status.COMPLETED
        finally:
            await worker.stop(0)
            await worker.stop(0)


class Doubtful:
    """A database whose first commit is in doubt, and that is then away for a while. Nothing was committed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._commits = 0
        self.back = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def transact(self, work: Callable[[Session], Awaitable[T]]) -> T:
        self._commits += 1
        if self._commits == 1:
            raise CommitInDoubt("1")
        return await self._database.transact(work)

    async def committed(self, mark: str) -> bool:
        if not self.back.is_set():
            raise Unavailable("away")
        return False


async def test_who_was_told_that_it_failed_is_not_stored_when_a_doubt_is_resolved(tmp_path: Path) -> None:
    app = App(Settings(database_url=f"sqlite:///{tmp_path}/runs.db", worker_health_port=0))  # type: ignore[arg-type]

    @app.task("quick")
    async def quick(ctx: Context) -> None: ...

    def new_run() -> Any:
        return app._new_run(
            "quick",
            {},
            priority=0,
            ordering_key=uuid4().hex,
            on_dead="skip",
            idempotency_key=None,
            delay_seconds=0,
            hold=False,
        )

    async with app:
        database = Doubtful(await app.database())
        committer = Committer(cast("Database", database), lambda lanes: None)
        await committer.start()
        await asyncio.sleep(0)  # it waits now, so that both share a batch
        impatient, patient = new_run(), new_run()
        patient_answer = asyncio.create_task(committer.accept([patient], 60))
        with pytest.raises(Unavailable):
            await committer.accept([impatient], 0.3)
        database.back.set()
        await patient_answer
        await committer.stop()
        assert committer.commits == 1
        assert (await app.get(patient.id)).status is Status.QUEUED
        with pytest.raises(Exception, match="No run"):
            await app.get(impatient.id)
