"""Schedules: how long one process takes to accept the runs of very many schedules that are due at the same moment.

They are stored by SQL, all due at once. The schedules service of one process decides about them; the time is from its
first pass to the commit of the last run.

The lag is measured with schedules that become due together while a worker with default settings is idle: from the
moment at which one is due to the transaction that accepts its run.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any, cast

import asyncpg

from bench.measures import SYSTEMS, Sizes
from bench.process import running
from bench.samples import Sample
from bench.servers import Servers, Workspace, query, wait_for_rows
from runlane.bus.memory import MemoryBus
from runlane.domain.time_zones import ZONES_VERSION
from runlane.maintenance.schedules import ScheduleService
from runlane.settings import load_settings
from runlane.store.queue.lanes import declare_lanes
from runlane.store.sql.database import Database, open_database
from runlane.submit.schedule_plans import SchedulePlanner

_HOUR_US = 3_600_000_000
_AHEAD_US = 20_000_000
_FIRED = "select count(*) as n from schedule_firings where run_id is not null"
_LAGS = "select (decided_at - due_at) / 1000.0 as ms from schedule_firings"
_LOAD = (
    "insert into schedules (uid, tenant, id, settings, template, paused_counts, zone_version, source, version, "
    "generation, anchor_at, cursor_at, next_at, next_due_at, created_at, created_by, updated_at, updated_by) "
    "select 'sched_' || lpad(g::text, 12, '0'), 'default', 's' || g, "
    'replace(\'{"spec":[{"every_seconds":3600.0}],"id":"ID",'
    '"target":{"kind":"task","name":"noop"},"input":{"key":1}}\', '
    "'ID', 's' || g), '{\"lane\":\"default\",\"max_attempts\":3,\"max_losses\":null}', true, $2, 'api', 1, 1, "
    "$3::bigint - $4::bigint, $3::bigint - $4::bigint, $3, $3, $3, 'bench', $3, 'bench' "
    "from generate_series(1, $1::bigint) g"
)


def variant(count: int) -> str:
    """Return the name of the sample for this many schedules."""
    return f"{count} due at once"


def lag(count: int) -> str:
    """Return the name of the sample of lags for this many schedules."""
    return f"{count} of one moment, lag"


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield per repeat the time until all runs are accepted, and the lags of fewer schedules in a running worker."""
    for repeat in range(sizes.repeats):
        with servers.workspace() as workspace:
            await SYSTEMS["runlane"](workspace).prepare()
            await _fill(workspace, sizes.schedules, time.time_ns() // 1000)
            await servers.checkpoint()
            database = await open_database(load_settings(database_url=workspace.database_url))
            try:
                seconds = await _time(database)
            finally:
                await database.close()
            rows = await query(workspace.database_url, "select count(*) as n from schedule_firings")
            runs = await query(workspace.database_url, "select count(*) as n from runs")
            assert rows[0]["n"] == runs[0]["n"] == sizes.schedules, "a slot has no run"
        yield Sample("schedules", "runlane", variant(sizes.schedules), repeat, "s", [seconds])
        few = sizes.schedules // 10
        yield Sample("schedules", "runlane", lag(few), repeat, "ms", await _lags(servers, few))


async def _lags(servers: Servers, count: int) -> list[float]:
    with servers.workspace() as workspace:
        system = SYSTEMS["runlane"](workspace)
        await system.prepare()
        url = workspace.database_url
        # Stored by SQL, they are noticed when the worker starts.
        await _fill(workspace, count, time.time_ns() // 1000 + _AHEAD_US)
        with running(system.worker(None), servers.environment(workspace), servers.log):
            await wait_for_rows(url, _FIRED, count, 120)
        return [float(row["ms"]) for row in await query(url, _LAGS)]


async def _fill(workspace: Workspace, count: int, due_at_us: int) -> None:
    connection = await cast("Any", asyncpg).connect(workspace.database_url)
    try:
        await connection.execute(_LOAD, count, ZONES_VERSION, due_at_us, _HOUR_US)
    finally:
        await connection.close()


async def _time(database: Database) -> float:
    await declare_lanes(database, {"default"})
    service = ScheduleService(database, MemoryBus(), SchedulePlanner(database, {}, 1_000_000, 10))
    started = time.perf_counter()
    while await service.run_once():
        pass
    return time.perf_counter() - started
