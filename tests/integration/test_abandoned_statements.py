"""A statement whose caller went away leaves nothing behind: no task of the driver, no line that the next waits at."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from runlane.store.sql.postgres import PostgresDatabase
from runlane.store.sql.statement import Statement
from tests.harness import settings_for

SLOW = Statement("slow", text("select pg_sleep(0.3)"))
QUICK = Statement("quick", text("select 1 as one"))


@pytest.mark.parametrize("after_seconds", [0, 0.002, 0.05])
async def test_a_statement_that_is_given_up_leaves_nothing_behind(postgres_url: str, after_seconds: float) -> None:
    database = await PostgresDatabase.open(settings_for(postgres_url), 1)
    steady = database.steady_since
    mine, lines = asyncio.all_tasks(), set(database._open)
    for _ in range(3):
        asking = asyncio.create_task(database.query(SLOW))
        await asyncio.sleep(after_seconds)
        asking.cancel()
        await asyncio.wait([asking])
        async with asyncio.timeout(5):
            assert [row["one"] for row in await database.query(QUICK)] == [1]
        assert asyncio.all_tasks() == mine
    # The connection is still the first one: cancelled callers cost the server no new one.
    assert database._open == lines
    # A cancel of ours is not an outage: after an outage a reaper trusts no free lock for a while.
    assert database.steady_since == steady
    await database.close()


async def test_a_statement_that_was_given_up_while_it_waited_for_a_connection_is_not_made(postgres_url: str) -> None:
    database = await PostgresDatabase.open(settings_for(postgres_url), 1)
    await database.query(Statement("make", text("create sequence given_up_calls")))
    count = Statement("count", text("select nextval('given_up_calls') as calls"))
    slow = asyncio.create_task(database.query(SLOW))
    await asyncio.sleep(0)  # a turn of the loop, in which it takes the only connection
    waiting = [asyncio.create_task(database.query(count)) for _ in range(3)]
    await asyncio.sleep(0)  # and one in which these begin to wait for it
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await slow
    assert [row["calls"] for row in await database.query(count)] == [1]
    await database.query(Statement("drop", text("drop sequence given_up_calls")))
    await database.close()
