"""The number of time series is bounded: label values beyond the limit are counted together as `other`."""

from __future__ import annotations

from typing import Any

from runlane.api.metric_labels import MAX_LABELS, bounded_demand, bounded_lanes, bounded_letters
from runlane.domain.lane import Lane
from runlane.domain.scaling import LaneDemand
from runlane.observability.instruments import LabeledCounter, LabeledHistogram
from runlane.store.failures.letters import OpenLetters


def lane(name: str, **fields: Any) -> Lane:
    plain: dict[str, Any] = {"enabled": True, "max_slots": 5, "poll_interval_ms": 250}
    return Lane(name, **(plain | fields))


def test_the_values_of_a_counter_and_a_histogram_are_bounded() -> None:
    counter = LabeledCounter("runs", "Runs.", ("target", "outcome"), most=2)
    for number in range(5):
        counter.add(f"task{number}", "completed")
    counter.add("task0", "completed")
    assert counter.values == {("task0", "completed"): 2, ("task1", "completed"): 1, ("other", "other"): 3}
    histogram = LabeledHistogram("wait", "Waits.", "lane", (1.0,), most=2)
    for number in range(5):
        histogram.observe(0.5, f"lane{number}")
    assert {name: sum(series.counts) for name, series in histogram.series.items()} == {
        "lane0": 1,
        "lane1": 1,
        "other": 3,
    }


def test_the_lanes_with_the_most_runs_keep_their_names() -> None:
    few = [lane("a"), lane("other")]
    assert bounded_lanes(few) is few
    busy = [lane(f"lane{number}", queued=5, running=number) for number in range(MAX_LABELS)]
    rest = [
        lane("other", queued=100),
        lane("idle", queued=1, running=2, oldest_queued_at_us=7),
        lane("off", enabled=False, queued=3, oldest_queued_at_us=1),
    ]
    *kept, other = bounded_lanes([*rest, *busy])
    assert {one.name for one in kept} == {one.name for one in busy}
    assert (other.name, other.queued, other.running, other.max_slots) == ("other", 104, 2, None)
    # The run in the disabled lane is older, but it is not late.
    assert (other.enabled, other.held, other.oldest_queued_at_us) == (True, False, 7)
    *_, stopped = bounded_lanes([*busy, lane("held", held=True, oldest_queued_at_us=1)])
    assert (stopped.held, stopped.oldest_queued_at_us) == (True, None)


def test_the_demand_has_the_same_lanes() -> None:
    demand = [
        LaneDemand(f"lane{number}", 4, 1, 3, float(number), {"stopped": 0, "lane_cap": 1})
        for number in range(MAX_LABELS + 2)
    ]
    names = {f"lane{number}" for number in range(MAX_LABELS)} | {"other"}
    *kept, other = bounded_demand(demand, names)
    assert {one.lane for one in kept} | {"other"} == names
    assert (other.lane, other.queued, other.running, other.startable) == ("other", 8, 2, 6)
    assert (other.oldest_seconds, other.blocked["lane_cap"]) == (MAX_LABELS + 1.0, 2)


def test_the_targets_of_open_letters_are_bounded() -> None:
    letters = [OpenLetters(number, number, f"task{number}") for number in range(1, MAX_LABELS + 3)]
    found = bounded_letters(letters)
    assert len(found) == MAX_LABELS + 1
    assert found[-1] == OpenLetters(3, 1, "other")
    assert sum(entry.count for entry in found) == sum(entry.count for entry in letters)
