"""Limits of a provider under agents of several workers, metered by the provider itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from runlane import Status
from runlane.testing.fake_provider import FakeFault, FakeProvider
from tests.chaos.agents import CREDENTIAL, cli_json, define, environment, fan_out, has_status, priced, start
from tests.chaos.cluster import Cluster, MakeCluster, eventually

CALL_SECONDS = 1.0
RETRY_AFTER_SECONDS = 4.0


pytestmark = pytest.mark.usefixtures("forked_providers")


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider([priced(delay_seconds=CALL_SECONDS)]) as provider:
        yield provider


@pytest.fixture
async def three(make_cluster: MakeCluster, provider: FakeProvider) -> Cluster:
    """A cluster of three workers."""
    cluster = await make_cluster(**environment(provider))
    await limit(cluster, provider, 2)
    await define(cluster, fan_out(3))
    await cluster.start_workers(3)
    return cluster


async def limit(cluster: Cluster, provider: FakeProvider, in_flight: int) -> None:
    await cli_json(cluster, "limits", "set", CREDENTIAL, "--in-flight", str(in_flight))


async def in_flight(provider: FakeProvider, count: int, seconds: float = 60) -> None:
    async def reached() -> bool:
        return (await asyncio.to_thread(provider.stats))["in_flight"] == count

    await eventually(reached, f"{count} calls in flight", seconds, every=0.02)


async def every_worker_calls(cluster: Cluster) -> None:
    """Wait until every worker has made a call, so that none still loads what its first call needs."""

    async def has() -> bool:
        query = "select distinct worker_id from runs join run_calls on run_id = id where status = 'running'"
        return len(await cluster.rows(query)) == 3

    await eventually(has, "a call of every worker", every=0.2)


async def further_calls(provider: FakeProvider, count: int) -> None:
    enough = provider.stats()["calls"] + count

    async def made() -> bool:
        return (await asyncio.to_thread(provider.stats))["calls"] >= enough

    await eventually(made, f"{count} further calls", 120, every=0.1)


async def test_the_limit_holds_and_is_raised_while_agents_run(three: Cluster, provider: FakeProvider) -> None:
    await start(three, 100)
    await every_worker_calls(three)
    await further_calls(provider, 10)
    assert provider.stats()["most_in_flight"] == 2
    await limit(three, provider, 4)
    await in_flight(provider, 4)
    await further_calls(provider, 10)
    assert provider.stats()["most_in_flight"] == 4


async def test_one_429_backs_every_worker_off(three: Cluster, provider: FakeProvider) -> None:
    await start(three, 8)
    await in_flight(provider, 2)
    fault = FakeFault(status=429, retry_after_seconds=RETRY_AFTER_SECONDS)
    before = provider.control(fault=fault)["calls"]
    refused_at = 0.0

    async def slowed() -> bool:
        nonlocal refused_at
        looked_at = time.monotonic()
        if (await asyncio.to_thread(provider.stats))["outcomes"].get("429"):
            return True
        # The refusal comes after this look, so the back-off lasts at least from here.
        refused_at = looked_at
        return False

    await eventually(slowed, "a 429", every=0.01)
    provider.control(fault=None)
    # A call that was in flight at that moment may be answered; none begins.
    calls = provider.stats()["calls"]
    assert calls <= before + 2
    while True:
        begun = (await asyncio.to_thread(provider.stats))["calls"]
        if time.monotonic() > refused_at + RETRY_AFTER_SECONDS - 0.5:
            break
        assert begun <= calls + 1
        await asyncio.sleep(0.1)
    await in_flight(provider, 2, 20)
    await three.all_ended(120)
    runs = await three.rows("select status from runs")
    assert {row["status"] for row in runs} == {"completed"}
    assert provider.stats()["most_in_flight"] == 2


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_a_run_that_waits_long_gives_its_slot_back_and_ends_anyway(
    kind: str, make_cluster: MakeCluster, provider: FakeProvider
) -> None:
    cluster = await make_cluster(kind, **environment(provider))
    await limit(cluster, provider, 0)
    await define(cluster, fan_out(1))
    await cluster.start_workers(1, concurrency=1)
    (run_id,) = await start(cluster)
    row = await has_status(cluster, run_id, Status.PAUSED)
    assert row["due_at"] is not None
    waiting = [event.data for event in await cluster.app.events(run_id) if event.type == "waiting"]
    assert CREDENTIAL in waiting[0]["reason"]
    # The only slot of the only worker is free for others.
    other = await cluster.app.enqueue("short", {"milliseconds": 1})
    assert (await cluster.app.wait(other.run_id, 30)).status is Status.COMPLETED
    assert provider.stats()["calls"] == 0
    await limit(cluster, provider, 2)
    run = await cluster.app.wait(run_id, 60)
    assert run.status is Status.COMPLETED, run.error
    assert provider.stats()["calls"] == 1
    await cluster.check_story()
