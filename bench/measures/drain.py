"""Drain: how many waiting no-op runs one worker process finishes per second.

The runs are there before the worker starts. Time runs from the first start to the last end as the database tells it,
so starting the process does not count. taskiq has no database: the tasks' own notes tell, from the first call to the
last, which leaves out its last acknowledgements. On Postgres, statistics change plans, for better or worse: so once as
after a sudden backlog, without any, and once after ANALYZE.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from bench.ground import Ground, query, wait_for_rows
from bench.measures import SYSTEMS, Sizes
from bench.process import running
from bench.samples import Sample

ANALYZED = ", after ANALYZE"
_PATIENCE_SECONDS = 300


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """One sample per repeat, system and state of the statistics; Runlane also with many slots."""
    for repeat in range(sizes.repeats):
        for name, count in sizes.drain:
            if name not in sizes.systems:
                continue
            yield await _drain(ground, name, count, sizes.slots, repeat)
            if name == "runlane":
                yield await _drain(ground, name, count, sizes.many_slots, repeat)
        for name, count in sizes.drain:
            if name in sizes.among("runlane", "procrastinate"):
                yield await _drain(ground, name, count, sizes.slots, repeat, analyze=True)
            if name == "runlane":
                yield await _drain(ground, name, count, sizes.many_slots, repeat, analyze=True)


async def _drain(ground: Ground, name: str, count: int, slots: int, repeat: int, *, analyze: bool = False) -> Sample:
    with ground.place() as place:
        system = SYSTEMS[name](place)
        await system.prepare()
        async with system.client() as client:
            await client.accept_many(count)
        if analyze:
            await query(place.database_url, "analyze")
        await ground.settle()
        ground.mailbox.empty()
        with running(system.worker(slots), ground.environment(place, count), ground.log):
            first = await ground.mailbox.next("counted", 1, _PATIENCE_SECONDS)
            last = await ground.mailbox.next("counted", count, _PATIENCE_SECONDS)
            seconds = (last.at_ns - first.at_ns) / 1e9
            if system.drained_sql is not None:
                row = await wait_for_rows(place.database_url, system.drained_sql, count, _PATIENCE_SECONDS)
                seconds = float(row["last"]) - float(row["first"])
        variant = f"{slots} slots{ANALYZED if analyze else ''}"
        return Sample("drain", name, variant, repeat, "runs/s", [count / seconds], remark=f"{count} runs")
