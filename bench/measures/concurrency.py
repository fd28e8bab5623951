"""Concurrency limits: what a key costs when runs are accepted, in bulk and by 50 callers, over a thousand keys.

Runs with a key and runs without one alternate in short rounds in one database, so that other load on the machine
affects both alike. The CPU time is that of this process and of all processes of the database server.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import count

from bench.measures import SYSTEMS, Sizes
from bench.samples import Sample
from bench.servers import Servers
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
_MOST = 1_000_000
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
                await servers.checkpoint()
                for name, submit in ((BULK, _bulk), (CONCURRENT, _concurrent)):
                    rates, cpu = await _alternate(servers, app, resources, submit, sizes.accept_many // 2)
                    for variant in (WITHOUT, WITH):
                        yield Sample("concurrency", "runlane", f"{name}, {variant}", repeat, "runs/s", [rates[variant]])
                        yield Sample("concurrency", "runlane", f"{name} CPU, {variant}", repeat, "us", [cpu[variant]])


async def _alternate(
    servers: Servers, app: App, resources: Resources, submit: Submit, total: int
) -> tuple[dict[str, float], dict[str, float]]:
    seconds: Counter[str] = Counter()
    cpu: Counter[str] = Counter()
    share = total // _ROUNDS
    for _ in range(_ROUNDS):
        for variant in (WITHOUT, WITH):
            used, started = time.process_time_ns() + servers.postgres_cpu_ns(), time.perf_counter_ns()
            await submit(app, resources, variant, share)
            seconds[variant] += time.perf_counter_ns() - started
            cpu[variant] += time.process_time_ns() + servers.postgres_cpu_ns() - used
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
    if variant == WITHOUT:
        return run
    key = f"customer-{number % KEYS}"
    limits = (ConcurrencyLimit(f"default/noop/{key}", _MOST, key),)
    # As a run is made with limits; `_replace` would cost a tenth of the accept.
    return NewRun._make((*run[:_LIMITS], limits, *run[_LIMITS + 1 :]))


async def _bulk(app: App, resources: Resources, variant: str, total: int) -> None:
    for first in range(0, total, 1000):
        await resources.accept([_run(app, variant) for _ in range(min(1000, total - first))])


async def _concurrent(app: App, resources: Resources, variant: str, total: int) -> None:
    async def caller() -> None:
        for _ in range(total // CALLERS):
            await resources.accept([_run(app, variant)])

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
