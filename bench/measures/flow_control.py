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
from bench.systems.runlane import app as bench_app
from runlane import App
from runlane.settings import load_settings

KEYS: Final = 1000
CALLERS: Final = 50
NONE: Final = "no rule"
_KEY: Final = "{{tags.0}}"
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
        app.include(bench_app)
        async with app:
            ways: list[tuple[int, Callable[[int], Awaitable[None]]]] = [
                (sizes.accept_one, lambda count: _one_by_one(app, rules, count)),
                (sizes.accept_many // 4, lambda count: _by_callers(app, rules, count)),
                (sizes.accept_many, lambda count: _bulk(app, rules, count)),
            ]
            for way, (count, work) in zip(WAYS, ways, strict=True):
                await work(CALLERS)
                await servers.checkpoint()
                started = time.perf_counter()
                await work(count)
                seconds = time.perf_counter() - started
                yield Sample("flow_control", "runlane", f"{way}, {variant}", repeat, "runs/s", [count / seconds])


async def _start(app: App, rules: Mapping[str, Any] | None, number: int) -> None:
    # The runs without a rule have the same tags.
    await app.enqueue("noop", {"key": number}, tags=(f"key-{number % KEYS}",), flow_control=rules)


async def _one_by_one(app: App, rules: Mapping[str, Any] | None, count: int) -> None:
    for number in range(count):
        await _start(app, rules, number)


async def _by_callers(app: App, rules: Mapping[str, Any] | None, count: int) -> None:
    async def call(first: int) -> None:
        for number in range(first, count, CALLERS):
            await _start(app, rules, number)

    await asyncio.gather(*(call(first) for first in range(CALLERS)))


async def _bulk(app: App, rules: Mapping[str, Any] | None, count: int) -> None:
    """Accept a thousand runs in each transaction, one for each key."""
    from runlane.domain.options import RunOptions
    from runlane.submit.tasks import TaskRequest

    for first in range(0, count, KEYS):
        numbers = range(first, min(first + KEYS, count))
        await app.enqueue_requests(
            [
                TaskRequest("noop", {"key": n}, RunOptions(tags=(f"key-{n % KEYS}",), flow_control=rules))
                for n in numbers
            ]
        )
