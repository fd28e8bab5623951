"""A row of the table of figures, and how its figures are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. `cells` are the systems in the order of the header; trailing ones may be left out."""

    label: str
    cells: Sequence[str]
    ratio: str = ""
    goal: str = ""
    met: bool | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        met = "" if self.met is None else ("yes" if self.met else "no")
        cells = [*self.cells, *[""] * (4 - len(self.cells))]
        return (self.label, *cells, self.ratio, self.goal, met)


def format_rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def format_seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def format_times(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}x" if value >= 3 else f"{value:.2f}x"


def format_pair(first: float | None, second: float | None, digits: int = 1) -> str:
    return "" if first is None or second is None else f"{first:,.{digits}f} / {second:,.{digits}f}"
