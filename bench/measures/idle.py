"""Idle: the transactions that idle processes cost Postgres.

Workers and API servers with default settings and no run, without Redis. Committed and rolled back transactions of the
database are counted over a window after every process has settled; the counting itself adds two. A process that starts
notifies all others, and Postgres counts a transaction for each that receives it, when that one's connection is used
again: after the interval at which each process checks it. So this interval has to pass before the window begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

from bench.measures import SYSTEMS, Sizes
from bench.process import running
from bench.samples import Sample
from bench.server import serving
from bench.servers import Servers, Workspace, query, wait_for_rows

FLEET = "fleet"
_TIMEOUT_SECONDS = 300
# Three times the five seconds of a full run are longer than `runlane.bus.postgres.CHECK_SECONDS`.
_SETTLE = 3
_ONLINE = "select count(*) as n from workers where status = 'online'"
_TRANSACTIONS = (
    "select xact_commit + xact_rollback as n from pg_stat_database where datname = current_database() "
    "and pg_stat_clear_snapshot() is not null"
)


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield one sample per repeat: the transactions per second of all idle processes together."""
    if not sizes.select("runlane"):
        return
    for repeat in range(sizes.repeats):
        with servers.workspace() as workspace:
            await SYSTEMS["runlane"](workspace).prepare()
            rate = await _transactions_per_second(servers, workspace, sizes)
        remark = f"{sizes.idle_workers} workers, {sizes.idle_servers} servers"
        yield Sample("idle", "runlane", FLEET, repeat, "transactions/s", [rate], remark=remark)


async def _transactions_per_second(servers: Servers, workspace: Workspace, sizes: Sizes) -> float:
    worker = SYSTEMS["runlane"](workspace).worker(None)
    async with AsyncExitStack() as stack:
        # The servers are first: behind the start of fifty workers they would not be ready within their time limit.
        for _ in range(sizes.idle_servers):
            await stack.enter_async_context(serving(servers, workspace, redis=False))
        for _ in range(sizes.idle_workers):
            stack.enter_context(running(worker, servers.environment(workspace), servers.log))
        await wait_for_rows(workspace.database_url, _ONLINE, sizes.idle_workers, _TIMEOUT_SECONDS)
        await asyncio.sleep(_SETTLE * sizes.idle_seconds)
        begun, before = time.monotonic(), await _transactions(workspace)
        await asyncio.sleep(4 * sizes.idle_seconds)
        return (await _transactions(workspace) - before) / (time.monotonic() - begun)


async def _transactions(workspace: Workspace) -> int:
    return int((await query(workspace.database_url, _TRANSACTIONS))[0]["n"])
