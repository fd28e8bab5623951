"""Rate limits of model providers over real processes, counted by the provider: never exceeded, changed at run time.

The meter sees a call begin after it was admitted and end before its slot is released, so it never counts more calls
than were admitted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator

import pytest

from runlane.domain.rate_limit import LimitChange
from runlane.store.rate_limits.limits import read_snapshot, set_limits
from tests.chaos.cluster import Cluster, MakeCluster, Process, eventually
from tests.chaos.meter import Meter

CREDENTIAL = "acme"
# As short as model calls get.
CALL_SECONDS = 0.5


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


async def make_calls(meter: Meter, limit: int, calls: int = 20) -> None:
    """Wait for further calls, and check that the limit holds during them."""
    meter.start_measuring()
    enough = meter.calls + calls

    async def made() -> bool:
        return meter.calls >= enough

    await eventually(made, f"{calls} calls", 120)
    assert meter.most == limit


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_the_limit_holds_and_can_be_raised(kind: str, meter: Meter, make_cluster: MakeCluster) -> None:
    cluster = await make_cluster(kind)
    await limit(cluster, 2)
    callers = start_callers(cluster, meter)
    await in_flight(meter, 2)
    await make_calls(meter, 2)
    await limit(cluster, 4)
    await in_flight(meter, 4)
    await make_calls(meter, 4)

    async def each_had_turns() -> bool:
        return {caller.pid for caller in callers} <= set(meter.by_pid)

    await eventually(each_had_turns, "a call of each process")


async def test_a_429_slows_all_processes_down(meter: Meter, make_cluster: MakeCluster) -> None:
    cluster = await make_cluster("postgres")
    await limit(cluster, 4)
    start_callers(cluster, meter)
    await in_flight(meter, 4)
    database = await cluster.app.database()
    meter.slow_next()

    async def slowed() -> float:
        found = (await read_snapshot(database)).slow.get(CREDENTIAL)
        return found.left_seconds if found is not None else 0.0

    left = await eventually(slowed, "the back-off", every=0.005)
    seen = time.monotonic()
    assert left <= 1.0

    async def over() -> bool:
        return meter.begun_at[-1] > seen + left

    await eventually(over, "the end of the back-off", 20)
    await in_flight(meter, 4, 20)
    # Calls that were admitted before may begin a moment later, at most as many as there are other slots. Then none
    # begins before the back-off is over.
    began = [at - seen for at in meter.begun_at if at > seen]
    assert len([after for after in began if after < left - 0.05]) <= 3, began

    async def forgiven() -> bool:
        return CREDENTIAL not in (await read_snapshot(database)).slow

    await eventually(forgiven, "a success after the back-off")


async def test_slots_of_a_killed_process_come_back(meter: Meter, make_cluster: MakeCluster) -> None:
    cluster = await make_cluster("postgres")
    await limit(cluster, 2)
    meter.seconds = 600.0
    (victim,) = start_callers(cluster, meter, processes=1)
    await in_flight(meter, 2)
    start_callers(cluster, meter, processes=2)
    meter.seconds = CALL_SECONDS
    victim.kill()
    await in_flight(meter, 0)
    await in_flight(meter, 2)
    await make_calls(meter, 2)
