"""Samples: every figure of a run with its conditions. The JSON file and all tables are made from them."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One repeat of one measurement of one system: one figure, or one figure per try."""

    measure: str
    system: str
    variant: str
    repeat: int
    unit: str
    values: list[float]
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 2))
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run."""

    conditions: dict[str, Any]
    samples: list[Sample]

    def values(self, measure: str, system: str, variant: str) -> list[float]:
        """Return all figures of a measurement, of every repeat."""
        return [
            value
            for sample in self.samples
            if (sample.measure, sample.system, sample.variant) == (measure, system, variant)
            for value in sample.values
        ]

    def median(self, measure: str, system: str, variant: str) -> float | None:
        """Return the median of all figures, or None."""
        found = self.values(measure, system, variant)
        return statistics.median(found) if found else None

    def percentile(self, measure: str, system: str, variant: str, percent: float) -> float | None:
        """Return a percentile of the figures of all repeats, or None."""
        found = sorted(self.values(measure, system, variant))
        return found[min(len(found) - 1, int(len(found) * percent / 100))] if found else None

    def remark(self, measure: str, system: str) -> str:
        """Return the first remark on a measurement of a system, or an empty string."""
        return next((s.remark for s in self.samples if (s.measure, s.system) == (measure, system) and s.remark), "")


def save(report: Report, path: Path) -> None:
    """Write a run."""
    text = {"conditions": report.conditions, "samples": [asdict(sample) for sample in report.samples]}
    path.write_text(json.dumps(text, indent=1) + "\n")


def load(path: Path) -> Report:
    """Read a run."""
    text = json.loads(path.read_text())
    return Report(text["conditions"], [Sample(**sample) for sample in text["samples"]])


def spread(values: Sequence[float]) -> float:
    """Return the largest value over the smallest. Above 1.5 the machine was busy."""
    return max(values) / min(values) if values and min(values) > 0 else 1.0
