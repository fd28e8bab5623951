"""Start tags: start-time fair queueing with one static rank, by which tenants share a lane.

A lane that several tenants use has a virtual time. It is the start tag of the run that is next, and the time of day
while nothing waits. An accepted run gets its start tag at once: the virtual time, or its tenant's last finish tag if
that is later. So the runs of a tenant with a long queue stand one after another, and the first run of another tenant
stands beside the first of them. A run's finish tag is its start tag plus RUN_COST_NS divided by the weight of the
tenant.

This cost is so small that virtual time does not overtake the time of day below 100,000 starts per second of one lane
and weight 1. Tags can therefore be compared with the ranks of runs that were accepted without tags, in any lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RUN_COST_NS: Final = 10_000
MIN_WEIGHT: Final = 0.1
MAX_WEIGHT: Final = 10.0
MAX_FAIRNESS_KEY: Final = 200
# How long a point of priority may delay other runs: the default of a lane, and its bounds.
PRIORITY_SECONDS: Final = 600
PRIORITY_BOUNDS_SECONDS: Final = (0, 86_400)
# The time between two readings of a lane's clock.
CLOCK_SECONDS: Final = 60
# The virtual time of a lane that starts no runs stands still. A point of priority is then worth this share of its time,
# which is the virtual time of 1,000 runs by default.
_SLOWEST_PACE: Final = 1_000 * RUN_COST_NS / (PRIORITY_SECONDS * 1_000_000_000)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A lane's virtual time at a time of day, both in microseconds."""

    at_us: int
    virtual_us: int


def virtual_time(next_tag_us: int | None, now_us: int) -> int:
    """Return the virtual time of a lane, given the start tag of the run that is next."""
    return now_us if next_tag_us is None else min(next_tag_us, now_us)


def next_tags(virtual_ns: int, finish_ns: int | None, charge_ns: int) -> tuple[int, int]:
    """Return the first start tag and the last finish tag of a tenant's new runs, given its last finish tag."""
    start = virtual_ns if finish_ns is None else max(virtual_ns, finish_ns)
    return start, start + charge_ns


def charge(count: int, weight: float, keys: int = 1) -> int:
    """Return the virtual time of `count` runs. A tenant's share is divided among its `keys` with waiting runs."""
    return round(count * RUN_COST_NS * keys / weight)


def tag_at(start_ns: int, charge_ns: int, count: int, position: int) -> int:
    """Return the start tag in microseconds of the run at this position among `count` that were charged together."""
    return (start_ns + charge_ns * position // count) // 1000


def pace(earlier: ClockReading | None, virtual_us: int, now_us: int) -> float:
    """Return how much virtual time passes in a second: 1 while nothing waits, and little while a long queue does."""
    if earlier is None or now_us <= earlier.at_us:
        return 1.0
    return min(1.0, max(0.0, (virtual_us - earlier.virtual_us) / (now_us - earlier.at_us)))


def priority_point(priority_seconds: int, pace: float) -> int:
    """Return the virtual microseconds of a point of priority: those that pass in `priority_seconds`."""
    return round(priority_seconds * 1_000_000 * max(pace, _SLOWEST_PACE))


def fair_rank(tag_us: int, priority: int, point_us: int) -> int:
    """Return the rank of a run with this start tag: lower ranks run first."""
    return tag_us - priority * point_us
