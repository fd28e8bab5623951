"""The clock of tests: the time of a database moves on command, for every process that uses the database."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from datetime import timedelta

import pytest

from runlane import App, Context, Status
from runlane.settings import Settings
from runlane.store.queue.lanes import declare_lanes
from runlane.store.queue.reaping import find_suspects
from runlane.store.sql.database import open_database
from runlane.testing import DatabaseClock, RunningApp
from tests.harness import Store, eventually

WEEK = timedelta(days=7)


async def running(app: App, settings: Settings) -> RunningApp:
    return await RunningApp(app, settings, clock=DatabaseClock(settings)).start()


async def has_status(app: App, run_id: str, status: Status) -> bool:
    return (await app.get(run_id)).status is status


async def test_a_wait_of_a_week_passes_at_once(settings: Settings) -> None:
    test = await running(App(), settings)
    try:
        steps = [{"id": "sleep", "type": "wait", "seconds": WEEK.total_seconds()}]
        await test.app.sync({"orchestrations": [{"id": "nap", "steps": steps}]})
        run_id = (await test.app.orchestrate("nap")).run_id
        await eventually(lambda: has_status(test.app, run_id, Status.PAUSED))
        await test.clock.advance(WEEK - timedelta(minutes=5))
        assert await has_status(test.app, run_id, Status.PAUSED)
        await test.clock.advance(300)
        ended = await test.app.wait(run_id, timeout=60)
        assert ended.status is Status.COMPLETED
        assert ended.ended_at_us is not None
        assert ended.ended_at_us - ended.accepted_at_us >= WEEK // timedelta(microseconds=1)
    finally:
        await test.stop()


async def test_a_worker_keeps_its_lease_unless_the_test_lets_it_expire(settings: Settings) -> None:
    app = App()

    @app.task("job")
    async def job(ctx: Context) -> int:
        return ctx.attempt

    async with DatabaseClock(settings) as clock:
        database = await open_database(settings)
        store = Store(settings, database)
        await declare_lanes(database, ["default"])
        run_id = await store.add(target="job")
        # A worker without heartbeats, which holds a lease.
        assert await store.claim(await store.worker(), targets=["job"])
        await clock.advance(WEEK)
        assert await find_suspects(database, 3600, trust_locks=False) == []
        await clock.advance(WEEK, leases=True)
        assert len(await find_suspects(database, 3600, trust_locks=False)) == 1
        async with RunningApp(app, settings):
            ended = await app.wait(run_id, timeout=60)
            assert (ended.status, ended.losses) == (Status.COMPLETED, 1)
        await database.close()


async def test_other_processes_see_the_time(settings: Settings) -> None:
    script = (
        "import asyncio, sys\n"
        "from runlane.settings import load_settings\n"
        "from runlane.testing import DatabaseClock\n"
        "print(asyncio.run(DatabaseClock(load_settings()).now()).timestamp())"
    )
    assert settings.database_url is not None
    async with DatabaseClock(settings) as clock:
        before = await clock.now()
        await clock.advance(WEEK)
        environment = {"RUNLANE_DATABASE_URL": settings.database_url.get_secret_value()}
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, env=environment, stdout=PIPE)
        printed, _ = await process.communicate()
        after = await clock.now()
        assert (before + WEEK).timestamp() <= float(printed) <= after.timestamp()


async def test_the_time_does_not_move_back(settings: Settings) -> None:
    async with DatabaseClock(settings) as clock:
        before = await clock.now()
        with pytest.raises(ValueError, match="cannot move back"):
            await clock.advance(-1)
        assert await clock.now() >= before
