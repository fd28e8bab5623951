"""Drain: how many queued no-op runs one worker process finishes per second.

The runs are queued before the worker starts. The time is from the first start to the last end in the database, without
the start of the process. taskiq has no database: its time is from the first notification of a task to the last, without
the last acknowledgements. On Postgres, statistics change plans, so it is measured without them and after ANALYZE.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from bench.measures import SYSTEMS, Sizes
from bench.process import running
from bench.samples import Sample
from bench.servers import Servers, query, wait_for_rows

ANALYZED = ", after ANALYZE"
UNWOKEN = ", without wake-ups over Postgres"
_TIMEOUT_SECONDS = 300
_WARM_UP = 5_000


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield one sample per repeat, system and state of the statistics; Runlane also with many slots and unwoken."""
    if "runlane" in sizes.systems:
        # The first drain on a new server is slower than all others, so it is not counted.
        await _drain(servers, "runlane", min(_WARM_UP, dict(sizes.drain)["runlane"]), sizes.slots, 0)
    for repeat in range(sizes.repeats):
        for name, count in sizes.drain:
            if name not in sizes.systems:
                continue
            yield await _drain(servers, name, count, sizes.slots, repeat)
            if name == "runlane":
                yield await _drain(servers, name, count, sizes.many_slots, repeat)
                yield await _drain(servers, name, count, sizes.slots, repeat, wake_ups=False)
        for name, count in sizes.drain:
            if name in sizes.select("runlane", "procrastinate"):
                yield await _drain(servers, name, count, sizes.slots, repeat, analyze=True)
            if name == "runlane":
                yield await _drain(servers, name, count, sizes.many_slots, repeat, analyze=True)


async def _drain(
    servers: Servers, name: str, count: int, slots: int, repeat: int, *, analyze: bool = False, wake_ups: bool = True
) -> Sample:
    environment = {} if wake_ups else {"RUNLANE_POSTGRES_WAKEUPS": "false"}
    with servers.workspace() as workspace:
        system = SYSTEMS[name](workspace)
        await system.prepare()
        async with system.client() as client:
            await client.accept_many(count)
        if analyze:
            await query(workspace.database_url, "analyze")
        await servers.checkpoint()
        servers.receiver.clear()
        with running(system.worker(slots), {**servers.environment(workspace, count), **environment}, servers.log):
            first = await servers.receiver.next("counted", 1, _TIMEOUT_SECONDS)
            last = await servers.receiver.next("counted", count, _TIMEOUT_SECONDS)
            seconds = (last.at_ns - first.at_ns) / 1e9
            if system.drained_sql is not None:
                row = await wait_for_rows(workspace.database_url, system.drained_sql, count, _TIMEOUT_SECONDS)
                seconds = float(row["last"]) - float(row["first"])
        variant = f"{slots} slots{ANALYZED if analyze else ''}{'' if wake_ups else UNWOKEN}"
        return Sample("drain", name, variant, repeat, "runs/s", [count / seconds], remark=f"{count} runs")
