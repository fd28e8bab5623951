"""Claims: the duration of one claim transaction with few and with very many runs queued.

The queue is loaded by SQL without ANALYZE, as after a sudden backlog, to detect plans that depend on statistics. The
worker's own claim is measured, from begin to commit.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any, cast

import asyncpg

from bench.measures import SYSTEMS, Sizes
from bench.samples import Sample
from bench.servers import Servers, Workspace
from runlane.settings import load_settings
from runlane.store.queue.claim import ClaimOutcome, claim
from runlane.store.queue.claim_locks import LaneMemory
from runlane.store.queue.lanes import declare_lanes
from runlane.store.queue.workers import register
from runlane.store.sql.database import Database, Session, open_database

_SINGLES = 40
_HUNDREDS = 8
_WORKER = "wrk_bench"

_LOAD_RUNS = (
    "insert into runs (id, target, lane, status, rank, priority, max_attempts, max_losses, last_seq, accepted_at) "
    "select 'run_' || lpad(to_hex(g), 32, '0'), 'noop', 'default', 'queued', g, 0, 3, 10, 1, g "
    "from generate_series(1, $1::bigint) g"
)
_LOAD_LANES = "insert into lanes (name, updated_at) select 'lane-' || g, 1 from generate_series(1, $1::bigint) g"
_LOAD_INPUTS = (
    "insert into run_inputs (run_id, input) select 'run_' || lpad(to_hex(g), 32, '0'), '{}' "
    "from generate_series(1, $1::bigint) g"
)
_LOAD_EVENTS = (
    "insert into run_events (run_id, seq, attempt, type, at, data) "
    "select 'run_' || lpad(to_hex(g), 32, '0'), 1, 0, 'queued', g, '{}' from generate_series(1, $1::bigint) g"
)


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield per repeat the times of claims of one run and of a hundred, by queue depth and with many lanes."""
    for repeat in range(sizes.repeats):
        for queued, lanes, what in (
            *((queued, 0, str(queued)) for queued in sizes.queued),
            (sizes.queued[0], sizes.lanes, f"{sizes.queued[0]} among lanes"),
        ):
            with servers.workspace() as workspace:
                await SYSTEMS["runlane"](workspace).prepare()
                await _fill(workspace, queued, lanes)
                await servers.checkpoint()
                database = await open_database(load_settings(database_url=workspace.database_url))
                try:
                    singles, hundreds = await time_claims(database)
                finally:
                    await database.close()
            yield Sample("claims", "runlane", f"1 of {what}", repeat, "ms", singles)
            yield Sample("claims", "runlane", f"100 of {what}", repeat, "ms", hundreds)


async def _fill(workspace: Workspace, queued: int, lanes: int) -> None:
    connection = await cast("Any", asyncpg).connect(workspace.database_url)
    try:
        for statement in (_LOAD_RUNS, _LOAD_INPUTS, _LOAD_EVENTS):
            await connection.execute(statement, queued)
        await connection.execute(_LOAD_LANES, lanes)
    finally:
        await connection.close()


async def time_claims(database: Database) -> tuple[list[float], list[float]]:
    """Return the times of claims of one run and of a hundred."""
    await declare_lanes(database, {"default"})
    await register(
        database,
        worker_id=_WORKER,
        host="bench",
        pid=0,
        version="bench",
        lanes=["*"],
        capacity=100,
        has_lock=False,
        lease_seconds=3600,
    )
    memory = LaneMemory()

    async def once(slots: int) -> float:
        async def work(session: Session) -> ClaimOutcome:
            return await claim(session, _WORKER, ["noop"], slots, memory)

        started = time.perf_counter()
        outcome = await database.transact(work)
        if len(outcome.claims) != slots and not outcome.again:
            raise RuntimeError(f"claimed {len(outcome.claims)} runs instead of {slots}")
        return (time.perf_counter() - started) * 1000

    # The first claims load the lanes and prepare the statements.
    for _ in range(5):
        await once(1)
    return [await once(1) for _ in range(_SINGLES)], [await once(100) for _ in range(_HUNDREDS)]
