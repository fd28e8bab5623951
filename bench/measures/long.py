"""Long: one run of a loop with very many steps. Its time per step and its worker's memory must not grow.

A while loop that does not collect, with five steps per iteration: one script in the sandbox and four prints. A second
run loses its worker in the middle: what a takeover reads must not grow with the number of steps either.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

from bench.measures import Sizes
from bench.process import WorkerProcess, memory_mb, running
from bench.samples import Sample
from bench.servers import Servers, Workspace, query, wait_for_rows
from bench.systems.runlane import Runlane

STEPS_PER_ITERATION = 5
PARTS = 10
_TIMEOUT_SECONDS = 300


def flow(iterations: int) -> dict[str, Any]:
    """Return the orchestration."""
    body = [{"id": "count", "type": "transform", "transform_code": "result = state.count + 1", "output_key": "count"}]
    body += [
        {"id": f"p{n}", "type": "print", "print_content": "round {state.count}", "output_key": f"p{n}"}
        for n in range(1, STEPS_PER_ITERATION)
    ]
    loop = {
        "id": "loop", "type": "loop", "while_condition": f"state.count < {iterations}", "max_rounds": iterations + 1,
        "collect": False, "loop_step_ids": [step["id"] for step in body],
    }  # fmt: skip
    return {
        "id": "long",
        "steps": [loop, *body],
        "entry_step_id": "loop",
        "state_schema": {"count": {"type": "integer", "default": 0}},
        "max_total_turns": 10 * iterations,
    }


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield three samples: time per step and memory in each tenth of the run, and the takeover."""
    if "runlane" not in sizes.systems:
        return
    iterations = sizes.long_steps // STEPS_PER_ITERATION
    remark = f"{iterations * STEPS_PER_ITERATION} steps"
    with servers.workspace() as workspace:
        system = await _prepare(workspace)
        await _start(system, iterations)
        with running(system.worker(None), servers.environment(workspace), servers.log) as worker:
            resident = await _memory_per_part(workspace, worker, iterations)
            await _wait_until_ended(workspace)
        spans = await _times_per_part(workspace)
    yield Sample("long", "runlane", "ms per step", 0, "ms", spans, remark=remark)
    yield Sample("long", "runlane", "RSS MB", 0, "MB", resident, remark=remark)
    with servers.workspace() as workspace, ExitStack() as stack:
        system = await _prepare(workspace)
        environment = servers.environment(workspace)
        workers = [stack.enter_context(running(system.worker(None), environment, servers.log)) for _ in range(2)]
        await wait_for_rows(workspace.database_url, _ONLINE, len(workers), _TIMEOUT_SECONDS)
        await _start(system, iterations)
        await wait_for_rows(workspace.database_url, _RECORDED, 3 * iterations, _TIMEOUT_SECONDS)
        [row] = await query(workspace.database_url, "select w.pid from runs r join workers w on w.id = r.worker_id")
        next(worker for worker in workers if worker.pid == row["pid"]).stop()
        await _wait_until_ended(workspace)
        rows = await query(workspace.database_url, _LOST)
    yield Sample("long", "runlane", "takeover", 0, "s", [float(rows[0]["seconds"])], remark=remark)


_ONLINE = "select count(*) as n from workers where status = 'online'"
_RECORDED = "select coalesce(max(no), 0) as n from run_steps"
# From the last record of attempt 1 to the first of attempt 2, by the database's clock.
_LOST = """
select (min(ended_at) filter (where attempt = 2) - max(ended_at) filter (where attempt = 1)) / 1e6 as seconds
from run_steps where path <> '_cursor'
"""


async def _prepare(workspace: Workspace) -> Runlane:
    system = Runlane(workspace.database_url)
    await system.prepare()
    return system


async def _start(system: Runlane, iterations: int) -> None:
    async with system.client() as client:
        await client.start(flow(iterations))


async def _memory_per_part(workspace: Workspace, worker: WorkerProcess, iterations: int) -> list[float]:
    """Return the worker's memory at the end of each part."""
    records = iterations * (STEPS_PER_ITERATION + 1)
    figures: list[float] = []
    for part in range(1, PARTS + 1):
        await wait_for_rows(workspace.database_url, _RECORDED, records * part // PARTS, _TIMEOUT_SECONDS)
        figures.append(memory_mb(worker.pid)[0])
    return figures


async def _wait_until_ended(workspace: Workspace) -> None:
    sql = "select count(*) as n, min(status) as status from runs where ended_at is not null"
    row = await wait_for_rows(workspace.database_url, sql, 1, _TIMEOUT_SECONDS)
    if row["status"] != "completed":
        raise RuntimeError(f"the run of a long loop is {row['status']}")


async def _times_per_part(workspace: Workspace) -> list[float]:
    """Return the milliseconds per step of each part."""
    rows: list[Mapping[str, Any]] = await query(
        workspace.database_url,
        "select part, min(ended_at) as first, count(*) filter (where kind in ('print', 'transform')) as steps "
        "from (select *, ntile($1) over (order by no) as part from run_steps where path <> '_cursor') s "
        "group by part order by part",
        PARTS,
    )
    last = (await query(workspace.database_url, "select max(ended_at) as at from run_steps"))[0]["at"]
    starts = [*(row["first"] for row in rows), last]
    return [(end - start) / 1000 / row["steps"] for row, (start, end) in zip(rows, pairwise(starts), strict=True)]
