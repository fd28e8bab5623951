"""Instruments: counters, gauges and histograms as plain numbers, and their text format for Prometheus.

A worker must stay small and a run must stay cheap, so no metrics library is used: counting is one addition. The number
of label values is limited, because each value is a time series until the process ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Protocol

# Replaces label values beyond the limit of an instrument.
OTHER = "other"
MAX_SERIES = 1000


class Instrument(Protocol):
    """An object that a metrics endpoint renders."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of the instrument in the text format of Prometheus."""
        ...


class Counter:
    """A counter, which can only increase."""

    __slots__ = ("name", "purpose", "value")

    def __init__(self, name: str, purpose: str) -> None:
        self.name = name
        self.purpose = purpose
        self.value: float = 0

    def add(self, count: float = 1) -> None:
        self.value += count

    def lines(self) -> Iterator[str]:
        yield from _head(f"{self.name}_total", self.purpose, "counter")
        yield f"{self.name}_total {_number(self.value)}"


class Gauge:
    """A number that can increase and decrease."""

    __slots__ = ("name", "purpose", "value")

    def __init__(self, name: str, purpose: str) -> None:
        self.name = name
        self.purpose = purpose
        self.value: float = 0

    def add(self, count: float) -> None:
        self.value += count

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.purpose, "gauge")
        yield f"{self.name} {_number(self.value)}"


class LabeledCounter:
    """Counters by label values. Values beyond the limit are counted as `other`."""

    __slots__ = ("_most", "labels", "name", "purpose", "values")

    def __init__(self, name: str, purpose: str, labels: Sequence[str], *, most: int = MAX_SERIES) -> None:
        self.name = name
        self.purpose = purpose
        self.labels = tuple(labels)
        self._most = most
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, *values: str, count: float = 1) -> None:
        if values not in self.values and len(self.values) >= self._most:
            values = (OTHER,) * len(self.labels)
        self.values[values] = self.values.get(values, 0) + count

    def lines(self) -> Iterator[str]:
        name = f"{self.name}_total"
        yield from _head(name, self.purpose, "counter")
        for values, count in sorted(self.values.copy().items()):
            yield f"{name}{_labels(self.labels, values)} {_number(count)}"


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
        """Return each bound as a string, with the number of values up to that bound. The last bound is +Inf."""
        found: list[tuple[str, int]] = []
        so_far = 0
        for bound, count in zip((*(f"{bound:g}" for bound in self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.purpose, "histogram")
        yield from self.samples((), ())

    def samples(self, labels: Sequence[str], values: Sequence[str]) -> Iterator[str]:
        """Yield the samples with these labels."""
        buckets = self.buckets()
        for bound, count in buckets:
            yield f"{self.name}_bucket{_labels((*labels, 'le'), (*values, bound))} {count}"
        shown = _labels(labels, values)
        yield f"{self.name}_sum{shown} {self.total:g}"
        yield f"{self.name}_count{shown} {buckets[-1][1]}"


class LabeledHistogram:
    """Histograms by the values of one label. Values beyond the limit are counted as `other`."""

    __slots__ = ("_bounds", "_most", "label", "name", "purpose", "series")

    def __init__(self, name: str, purpose: str, label: str, bounds: Sequence[float], *, most: int = 200) -> None:
        self.name = name
        self.purpose = purpose
        self.label = label
        self._bounds = tuple(bounds)
        self._most = most
        self.series: dict[str, Histogram] = {}

    def observe(self, value: float, label: str) -> None:
        """Count a value under a label value."""
        found = self.series.get(label)
        if found is None:
            if len(self.series) >= self._most:
                label = OTHER
            found = self.series.setdefault(label, Histogram(self.name, self.purpose, self._bounds))
        found.observe(value)

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.purpose, "histogram")
        for value, histogram in sorted(self.series.copy().items()):
            yield from histogram.samples((self.label,), (value,))


class Info:
    """A metric with the constant value 1, whose labels contain information."""

    __slots__ = ("_facts", "name", "purpose")

    def __init__(self, name: str, purpose: str, **facts: str) -> None:
        self.name = name
        self.purpose = purpose
        self._facts = facts

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.purpose, "gauge")
        yield f"{self.name}{_labels(tuple(self._facts), tuple(self._facts.values()))} 1"


def _head(name: str, purpose: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {purpose}", f"# TYPE {name} {kind}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(value)


def _labels(labels: Sequence[str], values: Sequence[str]) -> str:
    if not labels:
        return ""
    shown = ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True))
    return f"{{{shown}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
