"""Memory: what one idle worker process holds, a few seconds after it is ready. All of them idle side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack

from bench.ground import Ground
from bench.measures import SYSTEMS, Sizes
from bench.process import children, memory_mb, running
from bench.samples import Sample

_PATIENCE_SECONDS = 60
_SYSTEMS = ("runlane", "procrastinate", "taskiq-stream")


async def measure(ground: Ground, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Two samples per repeat and system: resident memory, and its share of it (PSS)."""
    for repeat in range(sizes.repeats):
        with ExitStack() as stack:
            pids: dict[str, int] = {}
            for name in sizes.among(*_SYSTEMS):
                place = stack.enter_context(ground.place())
                system = SYSTEMS[name](place)
                await system.prepare()
                ground.mailbox.empty()
                worker = stack.enter_context(running(system.worker(None), ground.environment(place), ground.log))
                async with system.client() as client:
                    # One run proves that the worker is up; a worker that never worked would be flattered.
                    await client.accept("stamp", 0)
                    letter = await ground.mailbox.next("started", 0, _PATIENCE_SECONDS)
                pids[name] = letter.pid
                if letter.pid != worker.pid and letter.pid not in children(worker.pid):
                    raise RuntimeError(f"the run of {name} started in process {letter.pid}, which is not its worker's")
            await asyncio.sleep(sizes.idle_seconds)
            for name, pid in pids.items():
                resident, share = memory_mb(pid)
                yield Sample("memory", name, "RSS", repeat, "MB", [resident])
                yield Sample("memory", name, "PSS", repeat, "MB", [share])
