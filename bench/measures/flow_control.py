"""Flow control: what a rule costs when runs are accepted, with starts spread over a thousand keys.

The same starts are accepted without a rule and with each rule, one at a time, by many callers at once, and in bulk. No
rule refuses or delays a start, so that the same runs are stored. `RULES` may have further rules.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final

from bench.measures import SYSTEMS, Sizes
from bench.samples import Sample
from bench.servers import Servers
from runlane import App, Context
from runlane.settings import load_settings

KEYS: Final = 1000
CALLERS: Final = 50
NONE: Final = "no rule"
_KEY: Final = "{{key}}"
RULES: Final[Mapping[str, Mapping[str, Any] | None]] = {
    NONE: None,
    "rate_limit": {"rate_limit": {"key": _KEY, "max": 1_000_000, "per_seconds": 1}},
    "throttle": {"throttle": {"key": _KEY, "max": 1_000_000, "per_seconds": 1, "burst": 100_000}},
    "max_backlog": {"max_backlog": {"key": _KEY, "max": 1_000_000}},
}
WAYS: Final = ("accept", "callers", "bulk")


async def measure(servers: Servers, sizes: Sizes) -> AsyncGenerator[Sample]:
    """Yield the rates of accepts by way and rule, rules alternating."""
    for repeat in range(sizes.repeats):
        for variant, rules in RULES.items():
            async for sample in _accepts(servers, sizes, variant, rules, repeat):
                yield sample


async def _accepts(
    servers: Servers, sizes: Sizes, variant: str, rules: Mapping[str, Any] | None, repeat: int
) -> AsyncGenerator[Sample]:
    with servers.workspace() as workspace:
        await SYSTEMS["runlane"](workspace).prepare()
        app = App(load_settings(database_url=workspace.database_url))
        app.task("limited", flow_control=rules)(_limited)
        async with app:
            ways: list[tuple[int, Callable[[int], Awaitable[None]]]] = [
                (sizes.accept_one, lambda count: _one_by_one(app, count)),
                (sizes.accept_many // 4, lambda count: _by_callers(app, count)),
                (sizes.accept_many, lambda count: _bulk(app, count)),
            ]
            for way, (count, work) in zip(WAYS, ways, strict=True):
                await work(CALLERS)
                await servers.checkpoint()
                started = time.perf_counter()
                await work(count)
                seconds = time.perf_counter() - started
                yield Sample("flow_control", "runlane", f"{way}, {variant}", repeat, "runs/s", [count / seconds])


async def _limited(ctx: Context, key: int) -> None:
    """The task whose runs are accepted, and not executed."""


async def _one_by_one(app: App, count: int) -> None:
    for number in range(count):
        await app.enqueue("limited", {"key": number % KEYS})


async def _by_callers(app: App, count: int) -> None:
    async def call(first: int) -> None:
        for number in range(first, count, CALLERS):
            await app.enqueue("limited", {"key": number % KEYS})

    await asyncio.gather(*(call(first) for first in range(CALLERS)))


async def _bulk(app: App, count: int) -> None:
    """Accept a thousand runs in each transaction, one for each key."""
    for first in range(0, count, KEYS):
        numbers = range(first, min(first + KEYS, count))
        await app.enqueue_many([("limited", {"key": number % KEYS}) for number in numbers])
