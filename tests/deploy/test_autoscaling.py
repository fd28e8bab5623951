"""The shipped ScaledObject on traces of demand: it follows load without thrash, and adds no workers that would idle."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from deploy.kubernetes.autoscaling import Autoscaler
from deploy.kubernetes.chart import example_values, render_chart
from runlane.domain.scaling import LaneRoom, ReadyRuns, demand_of
from runlane.domain.slots import SlotCap

CONCURRENCY = 50
POLL_SECONDS = 5


def shipped(pool: str = "default", replicas: int = 1) -> Autoscaler:
    (found,) = (
        item["spec"]
        for item in render_chart(example_values("keda"))
        if item["kind"] == "ScaledObject" and item["metadata"]["name"] == f"runlane-worker-{pool}"
    )
    assert found["pollingInterval"] == POLL_SECONDS
    behavior: dict[str, Any] = found["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    return Autoscaler(
        float(found["triggers"][0]["metadata"]["targetValue"]),
        found["minReplicaCount"],
        found["maxReplicaCount"],
        behavior,
        found["cooldownPeriod"],
        replicas,
    )


def drive(scaler: Autoscaler, demand: list[int]) -> list[int]:
    """Return the replicas over time; one entry of the demand lasts one poll."""
    return [scaler.step(index * POLL_SECONDS, slots) for index, slots in enumerate(demand)]


def turns(replicas: list[int]) -> int:
    """Return how often the number changed its direction."""
    steps = [after - before for before, after in itertools.pairwise(replicas) if after != before]
    return sum((before > 0) != (after > 0) for before, after in itertools.pairwise(steps))


def test_a_burst_is_answered_at_once_and_left_slowly() -> None:
    minutes = [*[0] * 12, *[500] * 60, *[10] * 240]
    replicas = drive(shipped(), minutes)
    assert replicas[12 + 3 * 3] >= 8, "doubled or four more every 15 s"
    assert max(replicas) == 10
    # Down after five minutes without demand, by a fifth per minute.
    assert replicas[12 + 60 + 50] == 10
    assert replicas[-1] == 1
    assert turns(replicas) == 1


def test_demand_that_varies_does_not_thrash() -> None:
    wave = [300 + (100 if index % 12 < 6 else -100) for index in range(600)]
    replicas = drive(shipped(replicas=6), wave)
    settled = replicas[60:]
    assert set(settled) == {8}, "the highest demand within the window of five minutes"


def test_a_small_difference_changes_nothing() -> None:
    assert set(drive(shipped(replicas=4), [190, 205, 210, 195] * 30)) == {4}


def test_runs_that_cannot_start_add_no_workers() -> None:
    capped = LaneRoom("default", starts=True, cap=SlotCap(100, 100))
    held = LaneRoom("media", starts=False, cap=SlotCap(None, 0))
    ready = [ReadyRuns("default", None, 5_000, 0), ReadyRuns("media", None, 5_000, 0)]
    demand = demand_of([capped, held], ready, {}, now_us=1, concurrency=CONCURRENCY)
    assert demand.queued == 10_000
    replicas = drive(shipped(replicas=2), [demand.wanted_slots] * 200)
    assert set(replicas) == {2}, "two workers execute what the lane allows, and no third one idles"


def test_busy_workers_are_not_removed_while_nothing_waits() -> None:
    # 100 runs are executed and none waits: a count of queued runs alone would scale in.
    running = demand_of([LaneRoom("default", starts=True, cap=SlotCap(None, 100))], [], {}, now_us=1).wanted_slots
    assert running == 100
    assert set(drive(shipped(replicas=2), [running] * 200)) == {2}


@pytest.mark.parametrize("idle_polls", [0, 20])
def test_a_pool_wakes_from_zero_and_returns_to_it(idle_polls: int) -> None:
    scaler = shipped("media", replicas=0)
    replicas = drive(scaler, [*[0] * idle_polls, *[1] * 10, *[0] * 200])
    assert set(replicas[:idle_polls]) <= {0}
    assert replicas[idle_polls] == 1, "the first ready run starts a worker"
    assert replicas[idle_polls + 10 + 20] == 1, "it stays for the cooldown"
    assert replicas[-1] == 0


def test_the_maximum_holds() -> None:
    assert max(drive(shipped(), [10_000] * 100)) == 20
