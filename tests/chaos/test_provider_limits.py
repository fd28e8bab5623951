"""Limits of model providers over real processes, counted by somebody else: never passed, well used, changed while hot.

The meter sees a call begin after it was let in and end before its slot is given back, so what it counts is never more
than what was let in.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator

import pytest
import redis.asyncio as redis

from runlane.domain.rate_limit import LimitChange
from runlane.store.rate_limits.limits import read_notices, set_limits
from runlane.testing import RedisServer
from tests.chaos.cluster import Cluster, MakeCluster, Process, eventually
from tests.chaos.meter import Meter, well_used

CREDENTIAL = "acme"
# As short as calls of models get; the shorter, the more the time between two calls counts.
CALL_SECONDS = 0.5
MEASURED_SECONDS = 6.0


@pytest.fixture
async def meter() -> AsyncGenerator[Meter]:
    async with Meter(CALL_SECONDS) as meter:
        yield meter


async def limit(cluster: Cluster, in_flight: int) -> None:
    change = LimitChange(in_flight=in_flight)
    await set_limits(await cluster.app.database(), CREDENTIAL, change, actor="test")


def start_callers(cluster: Cluster, meter: Meter, processes: int = 3, callers: int = 4) -> list[Process]:
    command = [sys.executable, "-m", "tests.chaos.chaos_caller", str(meter.port), str(callers), CREDENTIAL]
    return [cluster.start("caller", command) for _ in range(processes)]


async def in_flight(meter: Meter, count: int, seconds: float = 60.0) -> None:
    async def reached() -> bool:
        return meter.now == count

    await eventually(reached, f"{count} calls in flight", seconds, every=0.01)


async def measure(meter: Meter, limit: int, seconds: float = MEASURED_SECONDS) -> float:
    meter.start_measuring()
    await asyncio.sleep(seconds)
    share = meter.share(limit)
    print(f"{share:.3f} of {limit} used")
    assert meter.most <= limit
    return share


@pytest.mark.parametrize("kind", ["postgres", "sqlite", "redis"])
async def test_the_limit_holds_is_used_and_can_be_raised(
    kind: str, meter: Meter, make_cluster: MakeCluster, chaos_redis: RedisServer
) -> None:
    more = {"RUNLANE_REDIS_URL": chaos_redis.url} if kind == "redis" else {}
    cluster = await make_cluster("sqlite" if kind == "sqlite" else "postgres", **more)
    await limit(cluster, 2)
    callers = start_callers(cluster, meter)
    await in_flight(meter, 2)
    assert await well_used(lambda: measure(meter, 2))
    await limit(cluster, 4)
    raised = time.monotonic()
    await in_flight(meter, 4, 20)
    assert time.monotonic() - raised < 10
    assert await well_used(lambda: measure(meter, 4))
    # Each process had its turns.
    assert {caller.pid for caller in callers} <= set(meter.by_pid)


@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_one_word_of_the_provider_slows_everybody_down(
    kind: str, meter: Meter, make_cluster: MakeCluster, chaos_redis: RedisServer
) -> None:
    more = {"RUNLANE_REDIS_URL": chaos_redis.url} if kind == "redis" else {}
    cluster = await make_cluster("postgres", **more)
    await limit(cluster, 4)
    start_callers(cluster, meter)
    await in_flight(meter, 4)
    database = await cluster.app.database()
    meter.slow_next()

    async def slowed() -> float:
        found = (await read_notices(database)).slow.get(CREDENTIAL)
        return found.left_seconds if found is not None else 0.0

    left = await eventually(slowed, "the back-off", every=0.005)
    seen = time.monotonic()
    assert left <= 1.0

    async def over() -> bool:
        return meter.begun_at[-1] > seen + left

    await eventually(over, "the end of the back-off", 20)
    await in_flight(meter, 4, 20)
    # What had been let in before may begin a moment later, which is no more than the other three slots; then nobody
    # does before the back-off is over.
    began = [at - seen for at in meter.begun_at if at > seen]
    assert len([after for after in began if after < left - 0.05]) <= 3, began

    async def forgiven() -> bool:
        return CREDENTIAL not in (await read_notices(database)).slow

    await eventually(forgiven, "a success after the back-off")


@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_slots_of_a_killed_process_come_back(
    kind: str, meter: Meter, make_cluster: MakeCluster, chaos_redis: RedisServer
) -> None:
    more = {"RUNLANE_REDIS_URL": chaos_redis.url} if kind == "redis" else {}
    cluster = await make_cluster("postgres", **more)
    await limit(cluster, 2)
    meter.seconds = 600.0
    (victim,) = start_callers(cluster, meter, processes=1)
    await in_flight(meter, 2)
    start_callers(cluster, meter, processes=2)
    meter.seconds = CALL_SECONDS
    victim.kill()
    killed = time.monotonic()
    await in_flight(meter, 0)
    meter.start_measuring()
    await in_flight(meter, 2, 40)
    assert 5 < time.monotonic() - killed < 30
    assert await well_used(lambda: measure(meter, 2))


async def test_redis_comes_and_goes_and_the_limit_holds_all_the_time(
    meter: Meter, make_cluster: MakeCluster, chaos_redis: RedisServer
) -> None:
    cluster = await make_cluster("postgres", RUNLANE_REDIS_URL=chaos_redis.url)
    await limit(cluster, 2)
    database = await cluster.app.database()
    start_callers(cluster, meter)
    await in_flight(meter, 2)
    assert (await read_notices(database)).desk.kind == "redis"
    meter.start_measuring()

    async def counts(kind: str, epoch: int) -> bool:
        desk = (await read_notices(database)).desk
        return desk.kind == kind and desk.epoch >= epoch and desk.age_seconds > 5

    chaos_redis.kill()
    await eventually(lambda: counts("database", 2), "the database counts", 60)
    await in_flight(meter, 2)
    assert meter.most == 2
    assert await well_used(lambda: measure(meter, 2))
    chaos_redis.start()
    await eventually(lambda: counts("redis", 3), "Redis counts again", 90)
    await in_flight(meter, 2)
    assert meter.most == 2
    assert await well_used(lambda: measure(meter, 2))
    # It loses its memory while it runs.
    operator = redis.Redis.from_url(chaos_redis.url)
    await operator.flushall()
    await operator.aclose()
    await eventually(lambda: counts("redis", 4), "Redis counts from nothing", 60)
    await in_flight(meter, 2)
    assert meter.most == 2
