"""Memory: the memory of one idle worker process, a few seconds after it is ready. All systems idle side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack

from bench.measures import SYSTEMS, Sizes
from bench.process import children, memory_mb, running
from bench.samples import Sample
from bench.servers import Servers

_TIMEOUT_SECONDS = 60
_SYSTEMS = ("runlane", "procrastinate", "taskiq-stream")


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield two samples per repeat and system: RSS and PSS."""
    for repeat in range(sizes.repeats):
        with ExitStack() as stack:
            pids: dict[str, int] = {}
            for name in sizes.select(*_SYSTEMS):
                workspace = stack.enter_context(servers.workspace())
                system = SYSTEMS[name](workspace)
                await system.prepare()
                servers.receiver.clear()
                worker = stack.enter_context(running(system.worker(None), servers.environment(workspace), servers.log))
                async with system.client() as client:
                    # A worker that has not executed a run yet would use less memory.
                    await client.accept("stamp", 0)
                    notification = await servers.receiver.next("started", 0, _TIMEOUT_SECONDS)
                pids[name] = notification.pid
                if notification.pid != worker.pid and notification.pid not in children(worker.pid):
                    raise RuntimeError(
                        f"the run of {name} started in process {notification.pid}, which is not its worker's"
                    )
            await asyncio.sleep(sizes.idle_seconds)
            for name, pid in pids.items():
                resident, share = memory_mb(pid)
                yield Sample("memory", name, "RSS", repeat, "MB", [resident])
                yield Sample("memory", name, "PSS", repeat, "MB", [share])
