"""Schema 0002 over a database that is in use: data survives, writers go on, several upgrades take turns."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import asyncpg
import pytest

from runlane.settings import load_settings
from runlane.store.sql.database import open_database
from runlane.store.sql.migrate import check_schema, read_version, upgrade
from runlane.store.sql.migrations import HEAD
from tests.harness import eventually, settings_for

_BACK_TO_0001 = """
drop table tenants; drop table api_keys; drop table roles; drop table audit;
drop index runs_limited;
alter table runs drop column tenant, drop column limited, drop column first_seq;
alter table run_inputs drop column trace;
update alembic_version set version_num = '0001';
"""
_OLD_INSERT = (
    "insert into runs (id, target, lane, status, rank, priority, max_attempts, max_losses, accepted_at) "
    "values ($1, 'job', 'default', 'queued', 0, 0, 3, 10, 0)"
)


async def _connect(url: str) -> Any:
    return await cast("Any", asyncpg).connect(url)


@pytest.fixture
async def old_database(postgres_url: str) -> str:
    """The URL of a database as the first release made it."""
    connection = await _connect(postgres_url)
    try:
        await connection.execute(_BACK_TO_0001)
        await connection.execute(_OLD_INSERT.replace("$1", "'run_before'"))
    finally:
        await connection.close()
    return postgres_url


async def test_old_writers_go_on_during_and_after_the_upgrade(old_database: str) -> None:
    stop = asyncio.Event()
    written: list[str] = []

    async def write() -> None:
        connection = await _connect(old_database)
        try:
            while not stop.is_set():
                run_id = f"run_{len(written)}"
                await connection.execute(_OLD_INSERT, run_id)
                written.append(run_id)
        finally:
            await connection.close()

    writer = asyncio.create_task(write())
    await upgrade(settings_for(old_database))
    during = len(written)
    await eventually(lambda: len(written) >= during + 5, "old code wrote on")
    stop.set()
    await writer
    connection = await _connect(old_database)
    try:
        rows = await connection.fetch("select distinct tenant, limited, first_seq from runs")
        assert [tuple(row) for row in rows] == [("default", False, 1)]
        assert await connection.fetchval("select count(*) from runs") == len(written) + 1
        for index in ("runs_limited", "runs_tenant"):
            valid = f"select indisvalid from pg_index where indexrelid = '{index}'::regclass"
            assert await connection.fetchval(valid), index
        assert await connection.fetchval("select count(*) from tenants where id = 'default' and enabled") == 1
    finally:
        await connection.close()


async def test_upgrades_at_the_same_time_take_turns(old_database: str) -> None:
    await asyncio.gather(*(upgrade(settings_for(old_database)) for _ in range(4)))
    database = await open_database(settings_for(old_database), 2)
    try:
        await check_schema(database, "it")
    finally:
        await database.close()


async def test_an_upgrade_waits_out_a_long_transaction(old_database: str) -> None:
    connection = await _connect(old_database)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(_OLD_INSERT, "run_open")
        running = asyncio.create_task(upgrade(settings_for(old_database)))
        # It gives up its place after two seconds, so a third party that comes later is not held up for long.
        other = await _connect(old_database)
        try:
            await asyncio.wait_for(other.execute(_OLD_INSERT, "run_other"), 60)
        finally:
            await other.close()
        await transaction.commit()
        await running
    finally:
        await connection.close()


async def test_an_upgrade_that_broke_off_before_its_index_is_finished_by_the_next(old_database: str) -> None:
    await upgrade(settings_for(old_database))
    connection = await _connect(old_database)
    try:
        await connection.execute("drop index runs_limited; update alembic_version set version_num = '0001'")
    finally:
        await connection.close()
    assert await upgrade(settings_for(old_database)) == ("0001", HEAD)


async def test_the_embedded_file_is_raised_from_the_first_release(sqlite_url: str) -> None:
    import sqlite3

    path = sqlite_url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        for table in ("tenants", "api_keys", "roles", "audit"):
            connection.execute(f"drop table {table}")
        for index in ("limited", "tenant", "ready", "ready_limited", "ready_quarantined", "running_limited"):
            connection.execute(f"drop index runs_{index}")
        for column in ("tenant", "limited", "first_seq"):
            connection.execute(f"alter table runs drop column {column}")
        connection.execute("alter table run_inputs drop column trace")
        connection.execute("update alembic_version set version_num = '0001'")
        connection.execute(_OLD_INSERT.replace("$1", "'run_before'"))
    connection.close()
    settings = load_settings(database_url=sqlite_url)
    assert await upgrade(settings) == ("0001", HEAD)
    database = await open_database(settings)
    try:
        assert await read_version(database) == HEAD
    finally:
        await database.close()
