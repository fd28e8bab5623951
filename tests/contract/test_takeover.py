"""What must hold before a worker is declared lost: each proof is checked again under the worker's lock."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

import asyncpg
import pytest

from runlane.store.queue.reaping import declare_lost, find_suspects
from runlane.store.sql.database import open_database
from tests.harness import Store, settings_for

# Long enough that a busy machine does not make a worker silent by itself.
SILENCE_SECONDS = 600.0


async def silence(store: Store, worker_id: str, seconds: float) -> None:
    """Make the worker's last heartbeat as old as that."""
    await store.sql(
        "update workers set heartbeat_at = heartbeat_at - :us where id = :id", us=int(seconds * 1e6), id=worker_id
    )


async def declared(store: Store, worker_id: str) -> bool:
    return await store.database.transact(
        lambda session: declare_lost(session, worker_id, SILENCE_SECONDS, lock_is_free=True)
    )


async def test_a_worker_that_has_just_renewed_is_not_lost_though_its_lock_is_free(store: Store) -> None:
    worker = await store.worker(has_lock=True, lease_seconds=3600)
    assert not await declared(store, worker)
    await silence(store, worker, 2 * SILENCE_SECONDS)
    assert await declared(store, worker)


@pytest.fixture
async def young(copied_postgres: str) -> AsyncGenerator[Store]:
    """Return a store whose server reports that it has just started."""
    connection: Any = await cast("Any", asyncpg).connect(copied_postgres)
    name = await connection.fetchval("select current_database()")
    await connection.execute("create schema young")
    await _started(connection, "0 s")
    await connection.execute(f'alter database "{name}" set search_path = young, public, pg_catalog')
    settings = settings_for(copied_postgres)
    database = await open_database(settings)
    try:
        yield Store(settings, database)
    finally:
        await database.close()
        await connection.close()


async def _started(connection: Any, ago: str) -> None:
    await connection.execute(
        "create or replace function young.pg_postmaster_start_time() returns timestamptz language sql as "
        f"$$ select now() - interval '{ago}' $$"
    )


async def test_free_locks_of_a_server_that_has_just_started_prove_nothing(young: Store, copied_postgres: str) -> None:
    worker = await young.worker(has_lock=True, lease_seconds=3600)
    await silence(young, worker, 2 * SILENCE_SECONDS)
    assert await find_suspects(young.database, SILENCE_SECONDS, trust_locks=True) == []
    connection: Any = await cast("Any", asyncpg).connect(copied_postgres)
    try:
        await _started(connection, "10 s")
    finally:
        await connection.close()
    (suspect,) = await find_suspects(young.database, SILENCE_SECONDS, trust_locks=True)
    assert (suspect.id, suspect.expired) == (worker, False)
