"""Runlane with its worker command and its default settings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

from bench import notify
from runlane import App, Context
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.settings import load_settings
from runlane.store.sql.migrate import upgrade

app = App()


@app.task("noop")
async def noop(ctx: Context, key: int) -> None:
    notify.count()


@app.task("stamp")
async def stamp(ctx: Context, key: int) -> None:
    notify.send("started", key)


@app.task("hold")
async def hold(ctx: Context, key: int) -> None:
    notify.send("started", key)
    if ctx.attempt == 1:
        await asyncio.sleep(600)


@app.task("talk")
async def talk(ctx: Context, count: int, together: int) -> None:
    for first in range(0, count, together):
        lines = range(first, min(first + together, count))
        await asyncio.gather(*(ctx.log("a line of a run", number=number) for number in lines))


@app.task("tick")
async def tick(ctx: Context, count: int, longest: float) -> None:
    chance = random.Random(count)
    for number in range(count):
        await asyncio.sleep(chance.uniform(0.01, longest))
        await ctx.log("tick", number=number)
        notify.send("committed", number)


@app.task("look up")
async def look_up(ctx: Context, key: str) -> str:
    return f"{key} is known"


STEPS = 10


def _print_step(number: int) -> dict[str, Any]:
    return {"type": "print", "print_content": "{state.user_input} " + str(number)}


def _transform_step(number: int) -> dict[str, Any]:
    return {"type": "transform", "transform_code": f"result = {number}"}


def _flow(name: str, *kinds: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Return an orchestration of ten steps in sequence, alternating these kinds, each with an output."""
    numbers = range(1, STEPS + 1)
    steps: list[dict[str, Any]] = [{"id": f"s{n}", "output_key": f"s{n}", **kinds[n % len(kinds)](n)} for n in numbers]
    for step, following in pairwise(steps):
        step["next_step_id"] = following["id"]
    return {"id": name, "steps": steps}


FLOWS = {
    "print": _flow("print", _print_step),
    "print and transform": _flow("print-and-transform", _print_step, _transform_step),
}
_IN_FLIGHT = 100


class RunlaneClient:
    """Accepts through an App."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def accept(self, task: str, key: int) -> None:
        await self._app.enqueue(task, {"key": key})

    async def accept_many(self, count: int) -> None:
        await self._app.enqueue_many([("noop", {"key": key}) for key in range(count)])

    async def talk(self, lines: int) -> None:
        """Start a run that logs lines, a hundred at a time."""
        await self._app.enqueue("talk", {"count": lines, "together": 100})

    async def start_many(self, flow: str, count: int) -> None:
        """Start runs of an orchestration of ten steps."""
        await self.start(FLOWS[flow], count)

    async def start(self, flow: dict[str, Any], count: int = 1) -> None:
        """Store an orchestration and start runs of it."""
        await self.sync({"orchestrations": [flow]})
        await self.start_runs(flow["id"], count)

    async def sync(self, bodies: dict[str, list[dict[str, Any]]]) -> None:
        """Store definitions."""
        # A worker also imports this module and does not need these.
        from runlane.catalog.sync import sync_definitions
        from runlane.definitions.loader import parse_bodies

        loaded = parse_bodies(bodies)
        await sync_definitions(await self._app.database(), DEFAULT_TENANT, loaded, actor="bench")

    async def start_runs(self, flow: str, count: int = 1) -> None:
        """Start runs of a stored orchestration."""
        for start in range(0, count, _IN_FLIGHT):
            together = range(start, min(start + _IN_FLIGHT, count))
            await asyncio.gather(*(self._app.orchestrate(flow, "bench") for _ in together))

    async def set_lane_enabled(self, *, enabled: bool) -> None:
        """Enable or disable the default lane."""
        from runlane.store.queue.lanes import LaneChange, set_lane

        await set_lane(await self._app.database(), "default", LaneChange(enabled=enabled), actor="bench")


class Runlane:
    """Runlane on Postgres, and with Redis if its URL and a prefix are given."""

    name = "runlane"
    bulk = True
    drained_sql: str | None = (
        "select count(*) as n, min(claimed_at) / 1e6 as first, max(ended_at) / 1e6 as last "
        "from runs where status = 'completed'"
    )

    def __init__(self, database_url: str, redis: tuple[str, str] | None = None) -> None:
        redis_settings = {} if redis is None else {"redis_url": redis[0], "redis_prefix": redis[1]}
        self._settings = load_settings(database_url=database_url, **redis_settings)

    def worker(self, concurrency: int | None) -> Sequence[str]:
        slots = [] if concurrency is None else ["--concurrency", str(concurrency)]
        return ["-m", "runlane", "worker", "bench.systems.runlane:app", *slots]

    async def prepare(self) -> None:
        await upgrade(self._settings)

    @asynccontextmanager
    async def client(self, *, with_worker: bool = False) -> AsyncGenerator[RunlaneClient]:
        instance = App(self._settings)
        instance.include(app)
        async with instance:
            if not with_worker:
                yield RunlaneClient(instance)
                return
            worker, services = await instance.worker(), await instance.maintenance_services()
            await worker.start()
            for service in services:
                service.start()
            try:
                yield RunlaneClient(instance)
            finally:
                await worker.stop(1)
                for service in services:
                    await service.stop()
