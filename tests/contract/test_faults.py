"""Accept, claim and record through a database that fails again and again: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import runlane.resources
from runlane import App, Context
from runlane.domain.run import Status
from runlane.settings import Settings
from runlane.store.queue.runs import read_attempts
from runlane.store.sql.database import Database, open_database
from runlane.store.sql.migrate import open_ready
from tests.faults import Fault, FaultyDatabase, random_faults
from tests.harness import Store, eventually, settings_for

RUNS = 60


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> list[FaultyDatabase]:
    """Return every database that an App opens from now on, still without a plan."""
    opened: list[FaultyDatabase] = []

    async def open_faulty(settings: Settings, connections: int | None = None) -> Database:
        opened.append(FaultyDatabase(await open_ready(settings, connections)))
        return opened[-1]

    monkeypatch.setattr(runlane.resources, "open_ready", open_faulty)
    return opened


def quick(settings: Settings) -> Settings:
    """A short lease: behind PgBouncer a claim in doubt comes back only when the lease is over."""
    assert settings.database_url is not None
    return settings_for(
        settings.database_url.get_secret_value(),
        pgbouncer=settings.pgbouncer,
        lease_seconds=2,
        heartbeat_seconds=0.2,
        reaper_seconds=0.1,
        silence_seconds=0.3,
        timer_seconds=0.05,
        database_timeout_seconds=30,
        max_losses=1000,
    )


async def app_ended(store: Store, run_id: str) -> None:
    async def ended() -> bool:
        return (await store.status(run_id)).terminal

    await eventually(ended, f"the end of {run_id}", 100)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_everything_ends_once(settings: Settings, faulty: list[FaultyDatabase], seed: int) -> None:
    settings = quick(settings)
    app = App(settings)
    effects: Counter[tuple[str, int]] = Counter()

    @app.task("job", max_attempts=1, max_losses=1000)
    async def job(ctx: Context, n: int) -> int:
        await ctx.log("working", n=n)
        await ctx.checkpoint({"n": n})
        effects[ctx.run_id, ctx.attempt] += 1
        return n

    async with app, asyncio.timeout(120):
        faulty[0].set_plan(random_faults(seed, 0.3))
        accepted = await asyncio.gather(*(app.enqueue("job", {"n": n}, ordering_key=f"k{n % 40}") for n in range(RUNS)))
        worker = await app.worker(concurrency=25)
        duties = await app.maintenance_services()
        await worker.start()
        for duty in duties:
            duty.start()
        plain = Store(settings, await open_database(settings, 2))
        try:
            for item in accepted:
                await app_ended(plain, item.run_id)
        finally:
            faulty[0].set_plan([])
            for duty in duties:
                await duty.stop()
            await worker.stop()
        try:
            assert await plain.count("runs") == RUNS, "no accept was stored twice"
            for n, item in enumerate(accepted):
                run = await plain.get(item.run_id)
                assert (run.status, run.result, run.failures) == (Status.COMPLETED, n, 0)
                events = await plain.check_stream(item.run_id)
                counts: Counter[Any] = Counter((event.type, event.attempt) for event in events)
                assert all(count == 1 for (kind, _), count in counts.items() if kind in ("log", "checkpoint")), counts
                attempts = await read_attempts(plain.database, item.run_id)
                assert [attempt["outcome"] for attempt in attempts].count("completed") == 1
        finally:
            await plain.database.close()
    assert all(count == 1 for count in effects.values())
    assert len(set(faulty[0].seen)) > 2, "the plan really spoiled something"


@pytest.mark.parametrize("kind", [fault for fault in Fault if fault is not Fault.NONE])
async def test_accepts_survive_every_kind_of_fault(
    settings: Settings, faulty: list[FaultyDatabase], kind: Fault
) -> None:
    app = App(quick(settings))

    @app.task("job")
    async def job(ctx: Context, n: int) -> None: ...

    async with app:
        faulty[0].set_plan([kind, Fault.NONE, kind, kind, Fault.NONE])
        for _ in range(3):
            await asyncio.gather(*(app.enqueue("job", {"n": n}) for n in range(10)))
        await app.enqueue_many([("job", {"n": n}) for n in range(10)])
        store = Store(settings, await app.database())
        faulty[0].set_plan([])
        assert await store.count("runs") == await store.count("run_inputs") == 40
