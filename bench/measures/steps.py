"""Steps: how many steps per second one worker process executes, in runs of ten small steps each.

The runs are there before the worker starts; time runs from the first claim to the last end that the database tells.
DBOS executes workflows of ten steps that do nothing, in its two forms. Everything has its default concurrency.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from bench.ground import Ground, Place, query, wait_for_rows
from bench.measures import Sizes
from bench.process import running
from bench.samples import Sample
from bench.systems.runlane import FLOWS, STEPS, Runlane

DBOS_FLOWS = ("plain", "async")
_PATIENCE_SECONDS = 300


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """One sample per repeat and kind of run, the systems in turn."""
    for repeat in range(sizes.repeats):
        if "runlane" in sizes.systems:
            for flow in FLOWS:
                yield await _runlane(ground, flow, sizes.flows, repeat)
        if "dbos" in sizes.systems:
            for flow in DBOS_FLOWS:
                yield await _dbos(ground, flow, sizes.peer_flows, repeat)


async def _runlane(ground: Ground, flow: str, count: int, repeat: int) -> Sample:
    with ground.place() as place:
        system = Runlane(place.database_url)
        await system.prepare()
        async with system.client() as client:
            await client.start_many(flow, count)
        assert system.drained_sql is not None
        seconds = await _seconds(ground, place, system.worker(None), system.drained_sql, count)
        rows = await query(place.database_url, "select count(*) as n from run_steps where outcome = 'done'")
        if rows[0]["n"] != count * STEPS:
            raise RuntimeError(f"{rows[0]['n']} steps are recorded, not {count * STEPS}")
    return Sample("steps", "runlane", flow, repeat, "steps/s", [count * STEPS / seconds], remark=f"{count} runs")


async def _dbos(ground: Ground, flow: str, count: int, repeat: int) -> Sample:
    from bench.systems.dbos import Dbos

    with ground.place() as place:
        system = Dbos(place.database_url)
        await system.prepare()
        async with system.client() as client:
            await client.start_many(flow, count)
        seconds = await _seconds(ground, place, system.worker(), system.ended_sql, count)
        rows = await query(place.database_url, "select count(*) as n from dbos.operation_outputs")
        if rows[0]["n"] != count * STEPS:
            raise RuntimeError(f"{rows[0]['n']} steps are recorded, not {count * STEPS}")
    return Sample("steps", "dbos", flow, repeat, "steps/s", [count * STEPS / seconds], remark=f"{count} runs")


async def _seconds(ground: Ground, place: Place, worker: Sequence[str], ended_sql: str, count: int) -> float:
    await ground.settle()
    with running(worker, ground.environment(place), ground.log):
        row = await wait_for_rows(place.database_url, ended_sql, count, _PATIENCE_SECONDS)
        return float(row["last"]) - float(row["first"])
