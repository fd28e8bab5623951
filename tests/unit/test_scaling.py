"""The demand for workers: only what could start counts, and a pool follows it without thrashing."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from runlane.domain.scaling import LaneRoom, ReadyRuns, demand_of
from runlane.domain.slots import SlotCap

NOW = 1_000_000_000


def lane(name: str = "a", *, starts: bool = True, most: int | None = None, running: int = 0) -> LaneRoom:
    return LaneRoom(name, starts, SlotCap(most, running))


def ready(count: int, tenant: str | None = None, name: str = "a") -> ReadyRuns:
    return ReadyRuns(name, tenant, count, NOW - 2_000_000)


def test_an_empty_pool_needs_nothing_and_has_every_number() -> None:
    found = demand_of([lane()], [], {}, now_us=NOW, concurrency=50)
    assert (found.wanted_slots, found.wanted_workers, found.queued, found.oldest_seconds) == (0, 0, 0, 0.0)
    assert found.lanes[0].blocked == {"stopped": 0, "lane_cap": 0, "tenant_cap": 0}


def test_caps_of_lanes_and_tenants_bound_what_counts() -> None:
    tenants = {"acme": SlotCap(3, 1), "full": SlotCap(2, 5)}
    found = demand_of(
        [lane(most=10, running=4), lane("b"), lane("c", starts=False)],
        [ready(3), ready(9, "acme"), ready(9, "full"), ready(9, "acme", "b"), ready(5, name="c")],
        tenants,
        now_us=NOW,
        concurrency=4,
    )
    assert [one.startable for one in found.lanes] == [5, 0, 0]
    assert (found.wanted_slots, found.wanted_workers, found.running, found.queued) == (9, 3, 4, 35)
    assert found.lanes[0].blocked == {"stopped": 0, "lane_cap": 0, "tenant_cap": 16}
    assert found.lanes[2].blocked["stopped"] == 5
    assert found.oldest_seconds == 2.0


@given(
    st.none() | st.integers(0, 20),
    st.integers(0, 25),
    st.lists(st.tuples(st.sampled_from([None, "x", "y"]), st.integers(1, 30)), max_size=4),
    st.none() | st.integers(0, 9),
)
def test_what_could_start_and_what_is_blocked_is_all_that_waits(
    most: int | None, running: int, waiting: list[tuple[str | None, int]], bound: int | None
) -> None:
    tenants = {} if bound is None else {"x": SlotCap(bound, 0)}
    found = demand_of([lane(most=most, running=running)], [ready(n, t) for t, n in waiting], tenants, now_us=NOW)
    (only,) = found.lanes
    assert only.startable + sum(only.blocked.values()) == only.queued == sum(n for _, n in waiting)
    assert most is None or only.startable <= max(0, most - running)
    assert found.wanted_slots == running + only.startable


def test_a_pool_does_not_thrash_when_a_capped_lane_has_a_long_queue() -> None:
    """The formula of the Kubernetes autoscaler, fed with what the endpoint returns."""
    concurrency, workers, running, seen = 10, 1, 0, list[int]()
    for queued in (1_000, 900, 800, 700, 600, 500, 400, 300, 200, 100, 0, 0):
        running = min(25, workers * concurrency, queued + running)
        found = demand_of([lane(most=25, running=running)], [ready(queued)] if queued else [], {}, now_us=NOW)
        ratio = found.wanted_slots / workers / concurrency
        workers = max(1, workers if abs(ratio - 1) <= 0.1 else math.ceil(workers * ratio))
        seen.append(workers)
    # Never more than the cap can use, and no change while the queue is long.
    assert max(seen) == 3
    assert set(seen[1:10]) == {3}
