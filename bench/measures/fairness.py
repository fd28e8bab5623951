"""Fairness: what fair shares cost when runs are accepted, claimed and drained, with a hundred tenants in one lane.

The same runs of the same tenants are measured in a lane with fair shares and in one without, and accepts also with a
single tenant, whose runs have no start tags. Runs are drained that arrived in turns, ten of each tenant at a time, and
that arrived tenant by tenant. In the second case fair shares take each run from another place of every table, which
costs Postgres more than runs that are neighbors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg

from bench.measures import SYSTEMS, Sizes
from bench.measures.claims import time_claims
from bench.process import running
from bench.samples import Sample
from bench.servers import Servers, Workspace, wait_for_rows
from bench.systems.runlane import Runlane
from bench.systems.runlane import app as bench_app
from runlane import App
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.settings import load_settings
from runlane.store.access.tenants import create_tenant
from runlane.store.queue.lanes import LaneChange, set_lane
from runlane.store.sql.database import open_database

TENANTS = 100
FAIR, UNFAIR, ALONE = "fair", "not fair", "one tenant"
# How the runs of a drain arrived, and how many of a tenant at a time.
IN_TURNS, BY_TENANT = "in turns", "tenant by tenant"
_TURN = 10
_TIMEOUT_SECONDS = 300
# One run in a hundred is of another tenant than the one before it: each has its own tags.
_LOAD_RUNS = (
    "insert into runs (id, target, lane, status, rank, start_tag, priority, max_attempts, max_losses, last_seq, "
    "accepted_at, tenant) select 'run_' || lpad(to_hex(g), 32, '0'), 'noop', 'default', 'queued', g / $2 * 10, "
    "g / $2 * 10, 0, 3, 10, "
    "1, g, 'tenant-' || (g % $2) from generate_series(1, $1::bigint) g"
)
_LOAD_INPUTS = (
    "insert into run_inputs (run_id, input) select 'run_' || lpad(to_hex(g), 32, '0'), '{}' "
    "from generate_series(1, $1::bigint) g"
)
_LOAD_EVENTS = (
    "insert into run_events (run_id, seq, attempt, type, at, data) "
    "select 'run_' || lpad(to_hex(g), 32, '0'), 1, 0, 'queued', g, '{}' from generate_series(1, $1::bigint) g"
)


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield the rates of accepts and drains by kind of lane, and the times of claims by queue depth."""
    count = dict(sizes.drain)["runlane"]
    for repeat in range(sizes.repeats):
        for variant in (ALONE, UNFAIR, FAIR):
            async for sample in _accepts(servers, sizes, variant, repeat):
                yield sample
        for arrival in (IN_TURNS, BY_TENANT):
            for variant in (UNFAIR, FAIR):
                yield await _drain(servers, sizes, count, variant, arrival, repeat)
        for queued in sizes.queued:
            yield await _claims(servers, queued, repeat)


def _tenants(variant: str) -> list[str]:
    return [DEFAULT_TENANT] if variant == ALONE else [f"tenant-{number}" for number in range(TENANTS)]


@asynccontextmanager
async def _prepared(workspace: Workspace, variant: str) -> AsyncGenerator[App]:
    await SYSTEMS["runlane"](workspace).prepare()
    app = App(load_settings(database_url=workspace.database_url))
    app.include(bench_app)
    async with app:
        database = await app.database()
        for tenant in _tenants(variant):
            if tenant != DEFAULT_TENANT:
                await create_tenant(database, tenant, actor="bench")
        await set_lane(database, "default", LaneChange(fair=variant == FAIR), create=True, actor="bench")
        yield app


async def _bulk(app: App, variant: str, count: int, turn: int | None = None) -> None:
    """Accept runs of all tenants at once, so that batches contain many of them; `turn` of each tenant at a time."""
    tenants = _tenants(variant)
    share = count // len(tenants)
    turn = share if turn is None else min(turn, share)
    for first in range(0, share, turn):
        jobs = [("noop", {"key": key}) for key in range(first, min(first + turn, share))]
        await asyncio.gather(*(app.enqueue_many(jobs, tenant=tenant) for tenant in tenants))


async def _accepts(servers: Servers, sizes: Sizes, variant: str, repeat: int) -> AsyncGenerator[Sample]:
    with servers.workspace() as workspace:
        async with _prepared(workspace, variant) as app:
            tenants = _tenants(variant)
            for key in range(len(tenants) + 20):
                await app.enqueue("noop", {"key": key}, tenant=tenants[key % len(tenants)])
            await servers.checkpoint()
            started = time.perf_counter()
            for key in range(sizes.accept_one):
                await app.enqueue("noop", {"key": key}, tenant=tenants[key % len(tenants)])
            seconds = time.perf_counter() - started
            yield Sample("fairness", "runlane", f"accept, {variant}", repeat, "runs/s", [sizes.accept_one / seconds])
            started = time.perf_counter()
            await _bulk(app, variant, sizes.accept_many)
            seconds = time.perf_counter() - started
            yield Sample("fairness", "runlane", f"bulk, {variant}", repeat, "runs/s", [sizes.accept_many / seconds])


async def _drain(servers: Servers, sizes: Sizes, count: int, variant: str, arrival: str, repeat: int) -> Sample:
    with servers.workspace() as workspace:
        async with _prepared(workspace, variant) as app:
            await _bulk(app, variant, count, _TURN if arrival == IN_TURNS else None)
        stored = count // TENANTS * TENANTS
        await servers.checkpoint()
        system = Runlane(workspace.database_url)
        servers.receiver.clear()
        with running(system.worker(sizes.slots), servers.environment(workspace, stored), servers.log):
            row = await wait_for_rows(workspace.database_url, cast("str", system.drained_sql), stored, _TIMEOUT_SECONDS)
        seconds = float(row["last"]) - float(row["first"])
        return Sample("fairness", "runlane", f"drain {arrival}, {variant}", repeat, "runs/s", [stored / seconds])


async def _claims(servers: Servers, queued: int, repeat: int) -> Sample:
    with servers.workspace() as workspace:
        await SYSTEMS["runlane"](workspace).prepare()
        connection = await cast("Any", asyncpg).connect(workspace.database_url)
        try:
            await connection.execute(_LOAD_RUNS, queued, TENANTS)
            for statement in (_LOAD_INPUTS, _LOAD_EVENTS):
                await connection.execute(statement, queued)
        finally:
            await connection.close()
        await servers.checkpoint()
        database = await open_database(load_settings(database_url=workspace.database_url))
        try:
            singles, _ = await time_claims(database)
        finally:
            await database.close()
        return Sample("fairness", "runlane", f"claim 1 of {queued}", repeat, "ms", singles)
