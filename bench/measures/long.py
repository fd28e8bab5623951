"""Long: one run of a loop with very many steps. Its time per step and its worker's memory must not grow.

A while loop that does not collect, five steps a round: one computed in the sandbox, four printed. A second run loses
its worker in the middle: what a takeover has to read must not grow with the steps either.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

from bench.ground import Ground, Place, query, wait_for_rows
from bench.measures import Sizes
from bench.process import WorkerProcess, memory_mb, running
from bench.samples import Sample
from bench.systems.runlane import Runlane

STEPS_A_ROUND = 5
PARTS = 10
_PATIENCE_SECONDS = 300


def flow(rounds: int) -> dict[str, Any]:
    """The orchestration."""
    body = [{"id": "count", "type": "transform", "transform_code": "result = state.count + 1", "output_key": "count"}]
    body += [
        {"id": f"p{n}", "type": "print", "print_content": "round {state.count}", "output_key": f"p{n}"}
        for n in range(1, STEPS_A_ROUND)
    ]
    loop = {
        "id": "loop", "type": "loop", "while_condition": f"state.count < {rounds}", "max_rounds": rounds + 1,
        "collect": False, "loop_step_ids": [step["id"] for step in body],
    }  # fmt: skip
    return {
        "id": "long",
        "steps": [loop, *body],
        "entry_step_id": "loop",
        "state_schema": {"count": {"type": "integer", "default": 0}},
        "max_total_turns": 10 * rounds,
    }


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Three samples: the time per step and the memory in each tenth of the run, and the takeover."""
    if "runlane" not in sizes.systems:
        return
    rounds = sizes.long_steps // STEPS_A_ROUND
    remark = f"{rounds * STEPS_A_ROUND} steps"
    with ground.place() as place:
        system = await _prepared(place)
        await _start(system, rounds)
        with running(system.worker(None), ground.environment(place), ground.log) as worker:
            resident = await _resident(place, worker, rounds)
            await _ended(place)
        spans = await _spans(place)
    yield Sample("long", "runlane", "ms per step", 0, "ms", spans, remark=remark)
    yield Sample("long", "runlane", "RSS MB", 0, "MB", resident, remark=remark)
    with ground.place() as place, ExitStack() as stack:
        system = await _prepared(place)
        environment = ground.environment(place)
        workers = [stack.enter_context(running(system.worker(None), environment, ground.log)) for _ in range(2)]
        await wait_for_rows(place.database_url, _ONLINE, len(workers), _PATIENCE_SECONDS)
        await _start(system, rounds)
        await wait_for_rows(place.database_url, _RECORDED, 3 * rounds, _PATIENCE_SECONDS)
        [row] = await query(place.database_url, "select w.pid from runs r join workers w on w.id = r.worker_id")
        next(worker for worker in workers if worker.pid == row["pid"]).stop()
        await _ended(place)
        rows = await query(place.database_url, _LOST)
    yield Sample("long", "runlane", "takeover", 0, "s", [float(rows[0]["seconds"])], remark=remark)


_ONLINE = "select count(*) as n from workers where status = 'online'"
_RECORDED = "select coalesce(max(no), 0) as n from run_steps"
# From the last record of the one to the first of the other, by the database's clock.
_LOST = """
select (min(ended_at) filter (where attempt = 2) - max(ended_at) filter (where attempt = 1)) / 1e6 as seconds
from run_steps where path <> '_cursor'
"""


async def _prepared(place: Place) -> Runlane:
    system = Runlane(place.database_url)
    await system.prepare()
    return system


async def _start(system: Runlane, rounds: int) -> None:
    async with system.client() as client:
        await client.start(flow(rounds))


async def _resident(place: Place, worker: WorkerProcess, rounds: int) -> list[float]:
    """The worker's memory at the end of each part."""
    records = rounds * (STEPS_A_ROUND + 1)
    figures: list[float] = []
    for part in range(1, PARTS + 1):
        await wait_for_rows(place.database_url, _RECORDED, records * part // PARTS, _PATIENCE_SECONDS)
        figures.append(memory_mb(worker.pid)[0])
    return figures


async def _ended(place: Place) -> None:
    sql = "select count(*) as n, min(status) as status from runs where ended_at is not null"
    row = await wait_for_rows(place.database_url, sql, 1, _PATIENCE_SECONDS)
    if row["status"] != "completed":
        raise RuntimeError(f"the run of a long loop is {row['status']}")


async def _spans(place: Place) -> list[float]:
    """Milliseconds per step of each part."""
    rows: list[Mapping[str, Any]] = await query(
        place.database_url,
        "select part, min(ended_at) as first, count(*) filter (where kind in ('print', 'transform')) as steps "
        "from (select *, ntile($1) over (order by no) as part from run_steps where path <> '_cursor') s "
        "group by part order by part",
        PARTS,
    )
    last = (await query(place.database_url, "select max(ended_at) as at from run_steps"))[0]["at"]
    starts = [*(row["first"] for row in rows), last]
    return [(after - begun) / 1000 / row["steps"] for row, (begun, after) in zip(rows, pairwise(starts), strict=True)]
