"""Limit: what Postgres itself can do with the same lifecycle of a run, in hand-written SQL with batches of a hundred.

The statements write the same rows as Runlane (a run, its input, three events, an attempt, a result) over one
connection, one statement per phase, with almost no Python: no system on top can be faster with this batch size.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any, cast

import asyncpg

from bench.measures import SYSTEMS, Sizes
from bench.samples import Sample
from bench.servers import Servers

BATCH = 100
_NOW = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"

_INSERT = f"""
with batch as materialized (select id, {_NOW} as at from unnest($1::text[]) as batch(id)),
made as (
    insert into runs (id, target, lane, status, rank, priority, max_attempts, max_losses, last_seq, accepted_at)
    select id, 'noop', 'default', 'queued', at, 0, 3, 10, 1, at from batch returning id
),
inputs as (insert into run_inputs (run_id, input) select id, '{{"key":1}}' from batch)
insert into run_events (run_id, seq, attempt, type, at, data)
select id, 1, 0, 'queued', {_NOW}, '{{"status":"queued"}}' from made
"""
_CLAIM = f"""
with picked as materialized (
    select id from runs where lane = 'default' and status = 'queued' order by rank limit $1 for update skip locked
),
taken as (
    update runs set status = 'running', worker_id = 'w', attempt = attempt + 1, claimed_at = {_NOW},
    last_seq = last_seq + 1 from picked where runs.id = picked.id returning runs.id
),
events as (
    insert into run_events (run_id, seq, attempt, type, at, data)
    select id, 2, 1, 'worker_picked_up', {_NOW}, '{{"worker_id":"w"}}' from taken
)
select taken.id, run_inputs.input from taken join run_inputs on run_inputs.run_id = taken.id
"""
_FINISH = f"""
with batch as materialized (select id from unnest($1::text[]) as batch(id)),
ended as (
    update runs set status = 'completed', ended_at = {_NOW}, last_seq = last_seq + 1
    from batch where runs.id = batch.id and runs.attempt = 1 returning runs.id, claimed_at
),
events as (
    insert into run_events (run_id, seq, attempt, type, at, data)
    select id, 3, 1, 'done', {_NOW}, '{{"status":"completed"}}' from ended
),
attempts as (
    insert into run_attempts (run_id, attempt, worker_id, started_at, ended_at, outcome)
    select id, 1, 'w', claimed_at, {_NOW}, 'completed' from ended
)
insert into run_results (run_id, result) select id, 'null' from ended
"""


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield per repeat the lifecycles per second, with and without the insert."""
    for repeat in range(sizes.repeats):
        with servers.workspace() as workspace:
            await SYSTEMS["runlane"](workspace).prepare()
            await servers.checkpoint()
            # There are no statistics, as in the other measurements; without them only index scans are right.
            connection = await cast("Any", asyncpg).connect(
                workspace.database_url,
                server_settings={"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"},
            )
            try:
                inserting, draining = await _run_lifecycles(connection, sizes.limit)
            finally:
                await connection.close()
        yield Sample("limit", "postgres", "claim and finish", repeat, "runs/s", [sizes.limit / draining])
        yield Sample("limit", "postgres", "whole life", repeat, "runs/s", [sizes.limit / (inserting + draining)])


async def _run_lifecycles(connection: Any, count: int) -> tuple[float, float]:
    started = time.perf_counter()
    for batch in range(0, count, BATCH):
        await connection.execute(_INSERT, [f"run_{batch + offset:032x}" for offset in range(BATCH)])
    inserted = time.perf_counter()
    ended = 0
    while ended < count:
        rows = cast("list[Any]", await connection.fetch(_CLAIM, BATCH))
        await connection.execute(_FINISH, [row["id"] for row in rows])
        ended += len(rows)
    return inserted - started, time.perf_counter() - inserted
