"""The gauges of an installation move with what they measure, where no service of a process changes it meanwhile."""

from __future__ import annotations

from typing import Any, cast

import asyncpg

from runlane.store.queue.operation_gauges import read_operation_gauges
from runlane.store.sql.transaction_age import oldest_transaction_seconds
from tests.harness import Store
from tests.schedules import HOUR, MINUTE, ScheduleStore


async def test_a_late_schedule_shows_until_it_is_decided_or_paused(store: Store) -> None:
    schedules = ScheduleStore(store)

    async def lag() -> float:
        return (await read_operation_gauges(store.database)).schedule_lag_seconds

    assert await lag() == 0
    await schedules.create()
    assert await lag() == 0
    await schedules.pass_time(HOUR + 2 * MINUTE)
    assert 120 <= await lag() < 3600
    await schedules.tick()
    assert await lag() == 0
    await schedules.pass_time(HOUR + 2 * MINUTE)
    await schedules.verbs.pause("default", "s", "maintenance", actor="test")
    assert await lag() == 0


async def test_the_age_of_ended_runs_ignores_those_that_a_person_must_decide_about(store: Store) -> None:
    async def age() -> float:
        return (await read_operation_gauges(store.database)).oldest_ended_seconds

    await store.add()
    assert await age() == 0
    await store.finish(await store.claim_one())
    await store.sql("update runs set ended_at = ended_at - :hour", hour=HOUR)
    assert 3600 <= await age() < 7200
    await store.sql("update runs set holds_key = (1 = 1)")
    assert await age() == 0


async def test_an_open_transaction_shows(store: Store) -> None:
    if store.database.dialect == "sqlite":
        assert await oldest_transaction_seconds(store.database) == 0
        return
    assert store.settings.database_url is not None
    url = store.settings.database_url.get_secret_value()
    connection = await cast("Any", asyncpg).connect(url, statement_cache_size=0)
    try:
        async with connection.transaction():
            await connection.execute("select 1")
            assert await oldest_transaction_seconds(store.database) > 0
    finally:
        await connection.close()
