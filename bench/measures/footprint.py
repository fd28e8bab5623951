"""Footprint: what a run, a step and an event cost the database in bytes and transactions, and a slot in memory.

Bytes do not depend on the load of the machine. They are those of small inputs and outputs: what runs store beyond them
comes on top. `runlane plan` computes with these figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from bench.measures import Sizes
from bench.process import memory_mb, running
from bench.samples import Sample
from bench.servers import Servers, Workspace, query, wait_for_rows
from bench.systems.runlane import STEPS, Runlane

RUN, STEP, EVENT, SLOT = "run", "step", "event", "slot"
WAL, DISK, TRANSACTIONS = "WAL", "disk", "transactions"
_TIMEOUT_SECONDS = 300
_FLOW = "print"
_ENDED = "select count(*) as n from runs where status = 'completed'"
_STATE = (
    "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn as wal, pg_database_size(current_database()) as disk, "
    "xact_commit + xact_rollback as transactions from pg_stat_database where datname = current_database() "
    "and pg_stat_clear_snapshot() is not null"
)


class _State(NamedTuple):
    wal: float
    disk: float
    transactions: float


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield the bytes and transactions of a run, a step and an event, and the memory of a busy slot."""
    if not sizes.select("runlane"):
        return
    for repeat in range(sizes.repeats):
        run = await _per_run(servers, sizes.footprint_runs)
        flow = await _per_flow(servers, sizes.footprint_runs // STEPS)
        step = _State(*((whole - own) / STEPS for whole, own in zip(flow, run, strict=True)))
        event = await _per_event(servers, sizes.footprint_runs)
        for variant, cost in ((RUN, run), (STEP, step), (EVENT, event)):
            yield Sample("footprint", "runlane", f"{variant} {WAL}", repeat, "bytes", [cost.wal])
            yield Sample("footprint", "runlane", f"{variant} {DISK}", repeat, "bytes", [cost.disk])
            yield Sample("footprint", "runlane", f"{variant} {TRANSACTIONS}", repeat, "", [cost.transactions])
        yield Sample("footprint", "runlane", SLOT, repeat, "kB", [await _per_slot(servers, sizes.many_slots)])


async def _per_run(servers: Servers, count: int) -> _State:
    with servers.workspace() as workspace:
        system = Runlane(workspace.database_url)
        await system.prepare()
        before = await _read(workspace)
        async with system.client() as client:
            for first in range(0, count, 1000):
                await client.accept_many(min(1000, count - first))
        servers.receiver.clear()
        with running(system.worker(None), servers.environment(workspace, count), servers.log):
            await servers.receiver.next("counted", count, _TIMEOUT_SECONDS)
            await wait_for_rows(workspace.database_url, _ENDED, count, _TIMEOUT_SECONDS)
        return _divided(before, await _read(workspace), count)


async def _per_flow(servers: Servers, count: int) -> _State:
    with servers.workspace() as workspace:
        system = Runlane(workspace.database_url)
        await system.prepare()
        before = await _read(workspace)
        async with system.client() as client:
            await client.start_many(_FLOW, count)
        with running(system.worker(None), servers.environment(workspace), servers.log):
            await wait_for_rows(workspace.database_url, _ENDED, count, _TIMEOUT_SECONDS)
        return _divided(before, await _read(workspace), count)


async def _per_event(servers: Servers, count: int) -> _State:
    with servers.workspace() as workspace:
        system = Runlane(workspace.database_url)
        await system.prepare()
        before = await _read(workspace)
        async with system.client(with_worker=True) as client:
            await client.talk(count)
            await wait_for_rows(workspace.database_url, _ENDED, 1, _TIMEOUT_SECONDS)
        return _divided(before, await _read(workspace), count)


async def _per_slot(servers: Servers, slots: int) -> float:
    """Return the memory that one more executing run costs a worker."""
    with servers.workspace() as workspace:
        system = Runlane(workspace.database_url)
        await system.prepare()
        servers.receiver.clear()
        with running(system.worker(slots), servers.environment(workspace), servers.log) as worker:
            async with system.client() as client:
                await client.accept("hold", 0)
                await servers.receiver.next("started", 0, _TIMEOUT_SECONDS)
                before, _ = memory_mb(worker.pid)
                await asyncio.gather(*(client.accept("hold", number) for number in range(1, slots)))
                started = "select count(*) as n from runs where status = 'running'"
                await wait_for_rows(workspace.database_url, started, slots, _TIMEOUT_SECONDS)
            after, _ = memory_mb(worker.pid)
        return (after - before) * 1024 / (slots - 1)


async def _read(workspace: Workspace) -> _State:
    row = (await query(workspace.database_url, _STATE))[0]
    return _State(float(row["wal"]), float(row["disk"]), float(row["transactions"]))


def _divided(before: _State, after: _State, count: int) -> _State:
    return _State(*((late - early) / count for early, late in zip(before, after, strict=True)))
