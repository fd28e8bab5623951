"""Steps: how many steps per second one worker process executes, in runs of ten small steps each.

The runs are queued before the worker starts; the time is from the first claim to the last end in the database. DBOS
executes workflows of ten empty steps, in its two forms. Everything has its default concurrency.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from bench.measures import Sizes
from bench.process import running
from bench.samples import Sample
from bench.servers import Servers, Workspace, query, wait_for_rows
from bench.systems.runlane import FLOWS, STEPS, Runlane

DBOS_FLOWS = ("plain", "async")
_TIMEOUT_SECONDS = 300


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield one sample per repeat and kind of run, alternating the systems."""
    for repeat in range(sizes.repeats):
        if "runlane" in sizes.systems:
            for flow in FLOWS:
                yield await _runlane(servers, flow, sizes.flows, repeat)
        if "dbos" in sizes.systems:
            for flow in DBOS_FLOWS:
                yield await _dbos(servers, flow, sizes.peer_flows, repeat)


async def _runlane(servers: Servers, flow: str, count: int, repeat: int) -> Sample:
    with servers.workspace() as workspace:
        system = Runlane(workspace.database_url)
        await system.prepare()
        async with system.client() as client:
            await client.start_many(flow, count)
        assert system.drained_sql is not None
        seconds = await _seconds(servers, workspace, system.worker(None), system.drained_sql, count)
        rows = await query(workspace.database_url, "select count(*) as n from run_steps where outcome = 'done'")
        if rows[0]["n"] != count * STEPS:
            raise RuntimeError(f"{rows[0]['n']} steps are recorded, not {count * STEPS}")
    return Sample("steps", "runlane", flow, repeat, "steps/s", [count * STEPS / seconds], remark=f"{count} runs")


async def _dbos(servers: Servers, flow: str, count: int, repeat: int) -> Sample:
    from bench.systems.dbos import Dbos

    with servers.workspace() as workspace:
        system = Dbos(workspace.database_url)
        await system.prepare()
        async with system.client() as client:
            await client.start_many(flow, count)
        seconds = await _seconds(servers, workspace, system.worker(), system.ended_sql, count)
        rows = await query(workspace.database_url, "select count(*) as n from dbos.operation_outputs")
        if rows[0]["n"] != count * STEPS:
            raise RuntimeError(f"{rows[0]['n']} steps are recorded, not {count * STEPS}")
    return Sample("steps", "dbos", flow, repeat, "steps/s", [count * STEPS / seconds], remark=f"{count} runs")


async def _seconds(servers: Servers, workspace: Workspace, worker: Sequence[str], ended_sql: str, count: int) -> float:
    await servers.checkpoint()
    with running(worker, servers.environment(workspace), servers.log):
        row = await wait_for_rows(workspace.database_url, ended_sql, count, _TIMEOUT_SECONDS)
        return float(row["last"]) - float(row["first"])
