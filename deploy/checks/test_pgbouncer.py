"""A storm through a real PgBouncer in transaction mode, as a role that cannot change the schema.

Run by `make deploy-check`; the contract suite runs through it, too (TEST_PGBOUNCER=1).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest
from tests import forking
from tests.harness import eventually, settings_for
from tests.pgbouncer import pgbouncer_for
from tests.server_process import environment

from runlane import App, Context
from runlane.testing import ExternalPostgres, PostgresServer

ROOT = Path(__file__).parents[2]
RUNS = 300
WORKERS = 3
TASKS = """
import asyncio
from runlane import App, Context

app = App()

@app.task("work")
async def work(ctx: Context, number: int) -> int:
    await ctx.log("begun", number=number)
    await asyncio.sleep(0.02)
    return number
"""


@pytest.fixture
def urls(postgres_server: PostgresServer | ExternalPostgres, postgres_template: str) -> Generator[tuple[str, str]]:
    """Return the direct URL of the owner, and the URL of the application through PgBouncer."""
    name = "runlane_pgbouncer"
    postgres_server.drop_database(name)
    owner = postgres_server.create_database(name, postgres_template)
    with pgbouncer_for(owner, "runlane_app") as through:
        yield owner, through.replace("app@", "runlane_app@")
    postgres_server.drop_database(name)


async def test_a_storm_with_a_kill_completes_every_run_once(urls: tuple[str, str], tmp_path: Path) -> None:
    owner, through = urls
    (tmp_path / "tasks.py").write_text(TASKS)
    connection = await cast("Any", asyncpg).connect(owner)
    try:
        await connection.execute((ROOT / "deploy/postgres/roles.sql").read_text())
        await connection.execute("alter role runlane_app login")
        app = App(settings_for(through, pgbouncer=True, lease_seconds=2, heartbeat_seconds=0.2))

        @app.task("work")
        async def work(ctx: Context, number: int) -> int:
            return number

        variables = {
            "RUNLANE_DATABASE_URL": through,
            "RUNLANE_PGBOUNCER": "true",
            "RUNLANE_LEASE_SECONDS": "2",
            "RUNLANE_HEARTBEAT_SECONDS": "0.2",
        }
        command = [sys.executable, "-m", "runlane", "worker", "tasks:app", "--concurrency", "20"]
        async with app:
            workers = [forking.Popen(command, cwd=tmp_path, env=environment(**variables)) for _ in range(WORKERS)]
            try:
                accepted = await app.enqueue_many([("work", {"number": number}) for number in range(RUNS)])

                async def completed() -> int:
                    counted = "select count(*) from runs where status = 'completed'"
                    return await connection.fetchval(counted)

                async def some() -> bool:
                    return await completed() > RUNS // 10

                await eventually(some, "some runs")
                workers[0].kill()

                async def all_ended() -> bool:
                    return await completed() == RUNS

                await eventually(all_ended, "all runs")
            finally:
                for process in workers:
                    process.terminate()
                for process in workers:
                    await asyncio.to_thread(process.wait, 60)
            results = [(await app.get(run.run_id)).result for run in accepted]
        assert results == list(range(RUNS))
        # Every stream is without a gap, whatever connection its transactions got.
        gaps = await connection.fetchval(
            "select count(*) from runs where last_seq <> (select count(*) from run_events where run_id = runs.id)"
        )
        assert gaps == 0
        ddl = "create table public.own (a int)"
        direct = await cast("Any", asyncpg).connect(through, statement_cache_size=0)
        try:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await direct.execute(ddl)
        finally:
            await direct.close()
    finally:
        await connection.execute("drop owned by runlane_app, runlane_scaler, runlane_reader")
        await connection.execute("drop role runlane_app, runlane_scaler, runlane_reader")
        await connection.close()
