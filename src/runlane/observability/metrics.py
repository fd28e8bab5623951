"""Metrics: counters and histograms of a process, as plain numbers.

A worker must stay small and a run must stay cheap, so no metrics library is used: counting is one addition, and the
metrics endpoints of the API and of a worker render the numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
MAX_LABELS = 1000
SIZES = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)


class Counter:
    """A counter that only increases."""

    __slots__ = ("name", "purpose", "value")

    def __init__(self, name: str, purpose: str) -> None:
        self.name = name
        self.purpose = purpose
        self.value = 0

    def add(self, count: int = 1) -> None:
        self.value += count


class LabeledCounter:
    """Counters by the values of their labels. Beyond a bound, further values are counted as `other`."""

    __slots__ = ("labels", "name", "purpose", "values")

    def __init__(self, name: str, purpose: str, labels: Sequence[str]) -> None:
        self.name = name
        self.purpose = purpose
        self.labels = tuple(labels)
        self.values: dict[tuple[str, ...], int] = {}

    def add(self, *values: str, count: int = 1) -> None:
        if values not in self.values and len(self.values) >= MAX_LABELS:
            values = ("other",) * len(self.labels)
        self.values[values] = self.values.get(values, 0) + count


class Histogram:
    """Counts of values per bucket."""

    __slots__ = ("bounds", "counts", "name", "purpose", "total")

    def __init__(self, name: str, purpose: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.purpose = purpose
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, int]]:
        """Return each bound as a string with the number of values up to it; the last is +Inf."""
        found: list[tuple[str, int]] = []
        so_far = 0
        for bound, count in zip((*(f"{bound:g}" for bound in self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found


COMMITS = Counter("runlane_commits", "Transactions of the committer.")
BATCH_SIZE = Histogram("runlane_commit_members", "Members that shared one transaction.", SIZES)
FENCED_WRITES = Counter("runlane_fenced_writes", "Writes rejected because the run belonged to another attempt.")
TAKEOVERS = Counter("runlane_takeovers", "Runs that this process requeued from lost workers.")
LOST_WORKERS = Counter("runlane_lost_workers", "Workers that this process declared lost.")
ACCEPTS = Counter("runlane_accept_requests", "Requests to start a run that this process has answered.")
START_SECONDS = Histogram(
    "runlane_start_seconds",
    "From accepting a run to its first start by this worker, including a requested delay.",
    SECONDS,
)
RUN_SECONDS = Histogram("runlane_attempt_seconds", "How long attempts ran in this worker.", SECONDS)
STEP_SECONDS = Histogram("runlane_step_seconds", "How long steps of orchestrations took in this worker.", SECONDS)
DEAD_LETTERS = LabeledCounter(
    "runlane_dead_letters", "Runs that failed for good, recorded by this process.", ("target", "code")
)
FLOW_CONTROL = LabeledCounter(
    "runlane_flow_control", "Starts and runs that a rule of flow control has affected.", ("rule", "outcome")
)
LABELED_COUNTERS = (DEAD_LETTERS, FLOW_CONTROL)
SCHEDULE_STARTS = Counter("runlane_schedule_starts", "Runs that this process started for slots of schedules.")
SCHEDULE_SKIPS = Counter("runlane_schedule_skips", "Slots that this process skipped, replaced or refused by overlap.")
SCHEDULE_MISSES = Counter("runlane_schedule_misses", "Slots that this process recorded as missed.")
SCHEDULE_FAILURES = Counter("runlane_schedule_failures", "Slots whose run was not accepted.")
SCHEDULE_DELAY_SECONDS = Histogram(
    "runlane_schedule_delay_seconds", "From the due time of a slot to the decision of this process.", SECONDS
)
WEBHOOKS_DELIVERED = Counter("runlane_webhooks_delivered", "Webhook deliveries that this process has completed.")
WEBHOOKS_FAILED = Counter("runlane_webhooks_failed", "Webhook deliveries that this process has given up.")
WEBHOOK_TRIES_FAILED = Counter("runlane_webhook_tries_failed", "Failed tries of webhook deliveries by this process.")
WEBHOOK_SECONDS = Histogram("runlane_webhook_seconds", "How long tries of webhook deliveries took.", SECONDS)
COUNTERS = (
    COMMITS,
    FENCED_WRITES,
    TAKEOVERS,
    LOST_WORKERS,
    ACCEPTS,
    SCHEDULE_STARTS,
    SCHEDULE_SKIPS,
    SCHEDULE_MISSES,
    SCHEDULE_FAILURES,
    WEBHOOKS_DELIVERED,
    WEBHOOKS_FAILED,
    WEBHOOK_TRIES_FAILED,
)
HISTOGRAMS = (BATCH_SIZE, START_SECONDS, RUN_SECONDS, STEP_SECONDS, SCHEDULE_DELAY_SECONDS, WEBHOOK_SECONDS)


def render() -> str:
    """Return all metrics in the text format of Prometheus."""
    lines: list[str] = []
    for counter in COUNTERS:
        name = f"{counter.name}_total"
        lines += [f"# HELP {name} {counter.purpose}", f"# TYPE {name} counter", f"{name} {counter.value}"]
    for labeled in LABELED_COUNTERS:
        name = f"{labeled.name}_total"
        lines += [f"# HELP {name} {labeled.purpose}", f"# TYPE {name} counter"]
        for values, count in sorted(labeled.values.items()):
            shown = ",".join(
                f'{label}="{_escaped(value)}"' for label, value in zip(labeled.labels, values, strict=True)
            )
            lines.append(f"{name}{{{shown}}} {count}")
    for histogram in HISTOGRAMS:
        name = histogram.name
        lines += [f"# HELP {name} {histogram.purpose}", f"# TYPE {name} histogram"]
        buckets = histogram.buckets()
        lines += [f'{name}_bucket{{le="{bound}"}} {count}' for bound, count in buckets]
        lines += [f"{name}_sum {histogram.total:g}", f"{name}_count {buckets[-1][1]}"]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
