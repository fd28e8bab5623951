"""Figures of runs over time: how many were accepted, started and ended, their cost, and how long they waited and took.

Times are counted in fixed buckets, so that counts of several minutes, lanes and tenants can be added. A percentile is
the upper bound of the bucket that contains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import Field, with_config

from runlane.domain.wire import WIRE, Timestamp

# Upper bounds in seconds; a further bucket counts longer times.
BOUNDS_SECONDS: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
BUCKETS: Final = len(BOUNDS_SECONDS) + 1


@dataclass(slots=True)
class SeriesCounts:
    """Counts of one bucket of time, which can be added."""

    accepted: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    cost_usd: float = 0.0
    tokens: int = 0
    waits: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    durations: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    started: int = 0

    def add(self, other: SeriesCounts) -> None:
        """Add the counts of another one."""
        self.accepted += other.accepted
        self.completed += other.completed
        self.failed += other.failed
        self.cancelled += other.cancelled
        self.retried += other.retried
        self.cost_usd += other.cost_usd
        self.tokens += other.tokens
        self.waits = [one + two for one, two in zip(self.waits, other.waits, strict=True)]
        self.durations = [one + two for one, two in zip(self.durations, other.durations, strict=True)]
        self.started += other.started


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """The runs of one bucket of time: those accepted, those started and those ended in it."""

    at_us: Annotated[Timestamp, Field(alias="at", description="The start of the bucket.")]
    accepted: int
    completed: int
    failed: int
    cancelled: int
    retried: Annotated[int, Field(description="Ended runs that had a failure or lost a worker on the way.")]
    cost_usd: float
    tokens: int
    wait_p50_seconds: Annotated[
        float | None, Field(description="From acceptance to start, of the runs that ended; an upper bound.")
    ]
    wait_p95_seconds: float | None
    duration_p50_seconds: Annotated[float | None, Field(description="From start to end; an upper bound.")]
    duration_p95_seconds: float | None
    started: Annotated[int, Field(description="Runs whose first attempt started in the bucket.")] = 0


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class SeriesGroup:
    """The points of one lane, target or tenant; of everything if the name is empty. Empty buckets are left out."""

    name: str
    points: tuple[SeriesPoint, ...]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class RunSeries:
    """Figures of runs over time."""

    step_seconds: int
    from_us: Annotated[Timestamp, Field(alias="from")]
    to_us: Annotated[Timestamp, Field(alias="to")]
    counted_until_us: Annotated[
        Timestamp | None, Field(alias="counted_until", description="Later runs are not in the figures yet.")
    ]
    groups: tuple[SeriesGroup, ...]
    complete: Annotated[bool, Field(description="False if there were too many groups to return all of them.")]


def point_of(at_us: int, counts: SeriesCounts) -> SeriesPoint:
    """Return the point of a bucket."""
    return SeriesPoint(
        at_us,
        counts.accepted,
        counts.completed,
        counts.failed,
        counts.cancelled,
        counts.retried,
        round(counts.cost_usd, 6),
        counts.tokens,
        percentile(counts.waits, 0.5),
        percentile(counts.waits, 0.95),
        percentile(counts.durations, 0.5),
        percentile(counts.durations, 0.95),
        counts.started,
    )


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Return the bound below which this share of the counted times lies; None if it is infinite or without counts."""
    total = sum(counts)
    seen = 0
    for bound, count in zip(BOUNDS_SECONDS, counts, strict=False):
        seen += count
        if total and seen >= share * total:
            return bound
    return None
