"""Start tags: every tenant gets its share of the starts, none saves credit, priorities are bounded."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.domain.start_tags import (
    PRIORITY_SECONDS,
    RUN_COST_NS,
    ClockReading,
    charge,
    fair_rank,
    next_tags,
    pace,
    priority_point,
    tag_at,
    virtual_time,
)


class LaneModel:
    """A lane as the store keeps it: ready runs by rank, and the last finish tag of each tenant."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000
        self._finish: dict[str, int] = {}
        self.ready: list[tuple[int, int, int, str]] = []
        self._numbers = count()

    def accept(self, tenant: str, runs: int = 1, *, weight: float = 1.0, priority: int = 0, point_us: int = 0) -> None:
        self.now_us += 1
        next_tag = min((tag for _, _, tag, _ in self.ready), default=None)
        virtual_ns = virtual_time(next_tag, self.now_us) * 1000
        cost = charge(runs, weight)
        start, self._finish[tenant] = next_tags(virtual_ns, self._finish.get(tenant), cost)
        for position in range(runs):
            tag = tag_at(start, cost, runs, position)
            rank = fair_rank(tag, priority, point_us)
            heapq.heappush(self.ready, (rank, next(self._numbers), tag, tenant))

    def start(self) -> str:
        self.now_us += 1_000
        return heapq.heappop(self.ready)[3]

    def starts(self, number: int) -> list[str]:
        return [self.start() for _ in range(min(number, len(self.ready)))]


def test_a_late_tenant_starts_every_second_run_although_thousands_wait() -> None:
    lane = LaneModel()
    lane.accept("greedy", 20_000)
    lane.starts(500)
    lane.accept("modest", 10)
    begun = lane.starts(21)
    assert begun.count("modest") == 10
    # Each of them begins at most two starts after the one before it.
    places = [place for place, tenant in enumerate(begun) if tenant == "modest"]
    assert all(later - earlier <= 2 for earlier, later in zip([-1, *places], places, strict=False))


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 40)), min_size=2, max_size=12), st.integers(0, 60))
def test_tenants_with_queues_start_equally_often(requests: list[tuple[str, int]], before: int) -> None:
    """However the requests are cut and mixed, and whatever has started before."""
    lane = LaneModel()
    lane.accept("first", 100)
    lane.starts(before)
    queued: Counter[str] = Counter()
    for tenant, runs in requests:
        lane.accept(tenant, runs)
        queued[tenant] += runs
    started: Counter[str] = Counter()
    while all(started[tenant] < queued[tenant] for tenant in queued) and started["first"] < 100 - before:
        started[lane.start()] += 1
        counts = [started[tenant] for tenant in (*queued, "first")]
        assert max(counts) - min(counts) <= 1


@given(st.integers(1, 10), st.integers(1, 10))
def test_starts_are_shared_by_weight(one: int, other: int) -> None:
    lane = LaneModel()
    lane.accept("one", 400, weight=one)
    lane.accept("other", 400, weight=other)
    started = Counter(lane.starts(300))
    expected = 300 * one / (one + other)
    assert abs(started["one"] - expected) <= 12


def test_an_idle_tenant_saves_no_credit_and_has_no_debt() -> None:
    lane = LaneModel()
    lane.accept("busy", 5_000)
    lane.starts(5_000)
    lane.accept("busy", 100)
    lane.accept("idle", 100)
    started = Counter(lane.starts(100))
    assert abs(started["busy"] - started["idle"]) <= 2


def test_many_small_requests_get_no_more_than_one_large_one() -> None:
    lane = LaneModel()
    lane.accept("large", 300)
    for _ in range(300):
        lane.accept("small")
    started = Counter(lane.starts(300))
    assert abs(started["large"] - started["small"]) <= 2


def test_a_priority_overtakes_inside_a_tenant() -> None:
    lane = LaneModel()
    lane.accept("one", 100)
    lane.accept("one", 1, priority=1, point_us=1_000_000)
    lane.now_us += 10
    ranks = sorted(lane.ready)
    assert ranks[0][1] == 100


@pytest.mark.parametrize("priority", [1, 7, 100])
def test_a_flood_of_high_priority_delays_another_tenant_by_its_points_alone(priority: int) -> None:
    point_us = 10 * RUN_COST_NS // 1000  # ten runs
    lane = LaneModel()
    lane.accept("loud", 3_000, priority=priority, point_us=point_us)
    lane.accept("quiet", 1, point_us=point_us)
    assert lane.starts(3_001).index("quiet") <= priority * 10 + 2


def test_the_pace_of_a_lane_gives_a_point_its_time() -> None:
    minute = 60_000_000
    idle = pace(ClockReading(0, 0), minute, minute)
    busy = pace(ClockReading(0, 0), minute // 1000, minute)
    assert (idle, busy) == (1.0, 0.001)
    assert priority_point(PRIORITY_SECONDS, idle) == PRIORITY_SECONDS * 1_000_000
    assert priority_point(PRIORITY_SECONDS, busy) == PRIORITY_SECONDS * 1_000
    # A lane that starts nothing keeps the order of priorities: a point is worth a thousand runs.
    assert priority_point(PRIORITY_SECONDS, pace(ClockReading(0, 0), 0, minute)) == 1_000 * RUN_COST_NS // 1_000
    assert priority_point(0, 1.0) == 0


@given(st.integers(0, 2**50), st.integers(0, 2**50), st.integers(0, 2**50), st.integers(1, 2**50))
def test_a_pace_is_between_standing_still_and_the_time_of_day(earlier: int, then: int, virtual: int, now: int) -> None:
    assert 0.0 <= pace(ClockReading(earlier, then), virtual, now) <= 1.0
    assert pace(None, virtual, now) == 1.0


@given(st.integers(1, 1000), st.floats(0.1, 10), st.integers(0, 2**60))
def test_the_tags_of_a_batch_follow_each_other(runs: int, weight: float, start: int) -> None:
    cost = charge(runs, weight)
    tags = [tag_at(start, cost, runs, position) for position in range(runs)]
    assert tags == sorted(set(tags))
    assert tags[0] == start // 1000
