"""The rows of memories: acknowledged entries, their replication, reads, and search by meaning."""

from __future__ import annotations

from collections.abc import Iterator

from bench.rows import Row, format_pair, format_rate, format_seconds, format_times
from bench.samples import Report
from bench.systems.memory_node import AWAY, DISK, DRAIN, HALF_LOAD, HERE, LATE, PAUSED, STEADY_LOAD

_MEASURE, _SEARCH = "memory_adds", "memory_search"
_TENS = "adds, 10 entries per call"
_PACED = f"latency at {HALF_LOAD:,} entries/s, 10 per call"
_SINGLE_GOAL, _REPLICATED_GOAL, _LATENCY_GOAL_MS, _READ_GOAL_MS = 20_000, 10_000, 15, 1


def memory_add_rows(report: Report) -> Iterator[Row]:
    """Yield what a node acknowledges and replicates, beside plain loops of one commit per row."""
    plain = (
        report.median(_MEASURE, "sqlite", "plain insert loop"),
        report.median(_MEASURE, "postgres", "plain insert loop"),
    )
    for ending, shown in ((PAUSED, "replication paused"), ("", "beside their replication")):
        one, ten = (report.median(_MEASURE, "runlane", name + ending) for name in ("adds", _TENS))
        met = None if ten is None else ten >= _SINGLE_GOAL
        yield Row(
            f"memory, entries acknowledged per second, {shown}, one / ten per call",
            [format_pair(one, ten, 0)],
            "" if ten is None or plain[0] is None else f"{format_times(ten / plain[0])} of a plain SQLite loop",
            f"≥ {_SINGLE_GOAL:,} in tens" if ending else "",
            met if ending else None,
        )
        p50, p99 = (report.percentile(_MEASURE, "runlane", _PACED + ending, percent) for percent in (50, 99))
        yield Row(
            f"the same, acknowledgement at {HALF_LOAD:,} entries per second, {shown}, p50 / p99 ms",
            [format_pair(p50, p99)],
            "",
            f"p99 ≤ {_LATENCY_GOAL_MS} ms" if ending else "",
            None if p99 is None or not ending else p99 <= _LATENCY_GOAL_MS,
        )
        late, disk = (report.percentile(_MEASURE, "runlane", _PACED + ending + control, 99) for control in (LATE, DISK))
        if late is not None:
            yield Row(
                "the machine in the same seconds, p99 ms: late wake-up / write to disk", [format_pair(late, disk)]
            )
    yield Row(
        "memory, plain loops that insert one row per commit, SQLite / Postgres, rows per second",
        [format_pair(*plain, 0)],
    )
    for name, shown in ((HERE, "Postgres available"), (AWAY, "Postgres away")):
        p50, p99 = (report.percentile(_MEASURE, "runlane", name, percent) for percent in (50, 99))
        late, disk = (report.percentile(_MEASURE, "runlane", name + control, 99) for control in (LATE, DISK))
        yield Row(
            f"memory, acknowledgement at {STEADY_LOAD:,} entries per second, {shown}, p50 / p99 ms",
            [format_pair(p50, p99)],
            "" if late is None or disk is None else f"the machine, p99: wake-up {late:.1f}, disk {disk:.1f}",
        )
    drained = report.median(_MEASURE, "runlane", DRAIN)
    yield Row("memory, until the log of that time is replicated, s", [format_seconds(drained)])
    replicated = report.median(_MEASURE, "runlane", "replication alone")
    met = None if replicated is None else replicated >= _REPLICATED_GOAL
    yield Row("memory, operations replicated per second", [format_rate(replicated)], "", f"≥ {_REPLICATED_GOAL:,}", met)
    read = report.percentile(_MEASURE, "runlane", "ordered read", 50)
    met = None if read is None else read <= _READ_GOAL_MS
    yield Row("memory, ordered read of a page, p50 ms", [format_seconds(read)], "", f"≤ {_READ_GOAL_MS} ms", met)


def memory_search_rows(report: Report) -> Iterator[Row]:
    """Yield the time of one search by meaning, by where the vectors are."""
    found = {(sample.system, sample.variant) for sample in report.samples if sample.measure == _SEARCH}
    for system, variant in sorted(found):
        yield Row(
            f"memory, search by meaning, {system}, {variant}, s",
            [format_seconds(report.median(_SEARCH, system, variant))],
        )
