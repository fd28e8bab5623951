"""Concurrency limits: what a key costs when runs are accepted, in bulk and by 50 callers, over a thousand keys.

Runs with a key and runs without one alternate in short rounds in one database, so that other load on the machine
affects both alike. Each key has a limit of 10, and 4 admitted runs before each round, in which it gets one more. After
the round the slots of its runs are freed as if they had ended, so that every round begins with the same state: the
price of a limit depends on the admitted runs of its key. The CPU time is that of this process and of all processes of
the database server.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import asyncpg

from bench.measures import SYSTEMS, Sizes
from bench.samples import Sample
from bench.servers import Servers, Workspace
from bench.systems.runlane import app as bench_app
from runlane import App, TaskRequest
from runlane.domain.concurrency import ConcurrencyLimit
from runlane.resources import Resources
from runlane.settings import load_settings
from runlane.store.queue.accept import NewRun
from runlane.submit.tasks import task_run

KEYS = 1_000
CALLERS = 50
WITH, WITHOUT = "with a key", "without"
BULK, CONCURRENT = "bulk", f"{CALLERS} callers"
_ROUNDS = 10
# All are admitted: what is measured is the price of the limit, not a queue.
_MOST = 10
_ADMITTED = 4
_FREE = """
delete from limit_slots using runs where runs.id = limit_slots.run_id and runs.accepted_at > $1
"""
_LIMITS = NewRun._fields.index("limits")

Submit = Callable[[App, Resources, str, int], Awaitable[None]]


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield the rates of accepts and their CPU time, with and without a limit."""
    for repeat in range(sizes.repeats):
        with servers.workspace() as workspace:
            await SYSTEMS["runlane"](workspace).prepare()
            app = App(load_settings(database_url=workspace.database_url))
            app.include(bench_app)
            async with app:
                resources = await app.connect()
                for submit in (_bulk, _concurrent):
                    for variant in (WITHOUT, WITH):
                        await submit(app, resources, variant, 200)
                state = await _State.prepare(app, resources, workspace)
                await servers.checkpoint()
                for name, submit in ((BULK, _bulk), (CONCURRENT, _concurrent)):
                    rates, cpu = await _alternate(servers, state, submit, sizes.accept_many // 2)
                    for variant in (WITHOUT, WITH):
                        yield Sample("concurrency", "runlane", f"{name}, {variant}", repeat, "runs/s", [rates[variant]])
                        yield Sample("concurrency", "runlane", f"{name} CPU, {variant}", repeat, "us", [cpu[variant]])
                await state.connection.close()


@dataclass(frozen=True, slots=True)
class _State:
    """The database with which each round begins: the same admitted runs of each key."""

    app: App
    resources: Resources
    # It stays open: the CPU time of a server process that ends during a round would be subtracted from the round.
    connection: Any
    # When the last of these runs was accepted, by the clock of the database.
    prepared_at_us: int

    @staticmethod
    async def prepare(app: App, resources: Resources, workspace: Workspace) -> _State:
        connection = await cast("Any", asyncpg).connect(workspace.database_url)
        await connection.execute("delete from limit_slots")
        for _ in range(_ADMITTED):
            await _bulk(app, resources, WITH, KEYS)
        newest = await connection.fetchval("select max(accepted_at) from runs")
        return _State(app, resources, connection, newest)

    async def restore(self) -> None:
        await self.connection.execute(_FREE, self.prepared_at_us)


async def _alternate(
    servers: Servers, state: _State, submit: Submit, total: int
) -> tuple[dict[str, float], dict[str, float]]:
    seconds: Counter[str] = Counter()
    cpu: Counter[str] = Counter()
    share = total // _ROUNDS
    for _ in range(_ROUNDS):
        for variant in (WITHOUT, WITH):
            used, started = time.process_time_ns() + servers.postgres_cpu_ns(), time.perf_counter_ns()
            await submit(state.app, state.resources, variant, share)
            seconds[variant] += time.perf_counter_ns() - started
            cpu[variant] += time.process_time_ns() + servers.postgres_cpu_ns() - used
            await state.restore()
    done = share * _ROUNDS
    return (
        {variant: done * 1e9 / spent for variant, spent in seconds.items()},
        {variant: used / done / 1000 for variant, used in cpu.items()},
    )


_numbers = count()


def _run(app: App, variant: str) -> NewRun:
    number = next(_numbers)
    settings = app.settings
    task = bench_app.tasks["noop"]
    run = task_run(task, TaskRequest("noop", {"key": number}), settings.max_input_bytes, settings.max_losses)
    limits: tuple[ConcurrencyLimit, ...] = ()
    if variant == WITH:
        key = f"customer-{number % KEYS}"
        limits = (ConcurrencyLimit(f"default/noop/{key}", _MOST, key),)
    # Both kinds of runs are made alike, so that this way to add limits is not part of their price.
    return NewRun._make((*run[:_LIMITS], limits, *run[_LIMITS + 1 :]))


async def _bulk(app: App, resources: Resources, variant: str, total: int) -> None:
    for first in range(0, total, 1000):
        await resources.accept([_run(app, variant) for _ in range(min(1000, total - first))])


async def _concurrent(app: App, resources: Resources, variant: str, total: int) -> None:
    async def caller() -> None:
        for _ in range(total // CALLERS):
            await resources.accept([_run(app, variant)])

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
