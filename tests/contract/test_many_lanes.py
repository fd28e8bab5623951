"""Lanes in any number: claims cost what the lanes with ready runs cost, and every lane is served."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from runlane.settings import Settings
from runlane.store.queue import claim_survey
from runlane.store.queue.claim import claim
from runlane.store.queue.claim_locks import LaneMemory
from runlane.store.queue.lanes import declare_lanes
from runlane.store.sql.database import Session
from tests.harness import Store, new_run

MANY = 20_000


async def test_more_ready_lanes_than_one_survey_reads_are_all_served(store: Store) -> None:
    names = [f"lane-{number:03}" for number in range(2 * claim_survey.MAX_LANES + 5)]
    await declare_lanes(store.database, names)
    await store.add_all(*(new_run(lane=name) for name in names))
    worker, memory = await store.worker(), LaneMemory()
    claims = await store.claim(worker, 1000, memory=memory)
    while more := await store.claim(worker, 1000, memory=memory):
        claims += more
    assert sorted(claimed.lane for claimed in claims) == names


@pytest.fixture
async def crowded(store: Store, settings: Settings) -> Store:
    if settings.sqlite_path is None:
        await store.sql(
            "insert into lanes (name, updated_at) "
            f"select 'lane-' || n, 1 from generate_series(1, {MANY}) as n on conflict do nothing"
        )
    else:
        await declare_lanes(store.database, [f"lane-{number}" for number in range(MANY)])
    return store


async def test_a_new_run_is_found_at_once_among_many_lanes(crowded: Store) -> None:
    worker, memory = await crowded.worker(), LaneMemory()
    assert await crowded.claim(worker, memory=memory) == []
    run_id = await crowded.add(lane="lane-17000")
    assert [claimed.run_id for claimed in await crowded.claim(worker, memory=memory)] == [run_id]


async def test_a_claim_reads_and_locks_a_bounded_number_of_lanes(crowded: Store, settings: Settings) -> None:
    if settings.sqlite_path is not None:
        # There are no such locks on SQLite, and its plans do not show how many rows they read.
        return
    await crowded.add_all(*(new_run(lane=f"lane-{number}") for number in range(1, 2001)))
    worker, memory = await crowded.worker(), LaneMemory()
    locks, read = 0, 0

    async def work(session: Session) -> None:
        nonlocal locks, read
        await claim(session, worker, ["job"], 1, memory)
        connection = cast("Any", session)._connection
        held = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        locks = max(locks, await connection.fetchval(held))
        params: dict[str, Any] = {"worker_id": worker, "targets": ["job"], "orchestrations": "", "agents": ""}
        params["lane_after"] = memory.lane_after
        sql, arguments = claim_survey.LANES.bound("postgresql", params, None)
        (plan,) = json.loads(await connection.fetchval(f"explain (analyze, format json) {sql}", *arguments))
        read = max(read, rows_read(plan["Plan"], "lanes"))

    for _ in range(10):
        await crowded.database.transact(work)
    assert locks <= 2 * (claim_survey.MAX_LANES + claim_survey.MAX_QUEUES + claim_survey.MAX_QUARANTINED) + 1
    # Each lane is looked up once for each of its settings, and one more row is read for the poll interval.
    assert 0 < read <= 4 * claim_survey.MAX_LANES


def rows_read(node: dict[str, Any], table: str) -> int:
    """Return the rows that the plan's scans of a table have returned and filtered out."""
    mine = 0
    if node.get("Relation Name") == table:
        mine = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return round(mine) + sum(rows_read(inner, table) for inner in node.get("Plans", []))
