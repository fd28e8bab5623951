"""The figures of the README are those of the benchmarks: each one is a figure of bench/README.md, rounded at most."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
# Figures of 100 and more that end with zeros may be rounded to them.
_ROUNDED_FROM = 100


def figures_of(cells: list[str]) -> list[str]:
    """Return the numbers in the cells of a table, without their separators of thousands."""
    return [found.replace(",", "") for cell in cells for found in NUMBER.findall(cell)]


def measured_rows() -> list[list[str]]:
    section = (ROOT / "README.md").read_text().split("\n## Measured\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [row for row in rows if not set("".join(row)) <= set("- ")]


def is_rounded_from(figure: str, measured: float) -> bool:
    """Return whether a figure is a measured one, as precisely as it is written."""
    decimals = len(figure.partition(".")[2])
    value = float(figure)
    zeros = len(figure) - len(figure.rstrip("0")) if not decimals and value >= _ROUNDED_FROM else 0
    # Half of the last digit, and a little more, because the measured figure is rounded too.
    return abs(value - measured) <= 0.51 * 10.0 ** (zeros - decimals)


def test_every_figure_of_the_readme_is_measured() -> None:
    table = (ROOT / "bench" / "README.md").read_text().split("\n## How to read the figures")[0]
    measured = [float(figure) for figure in figures_of(table.splitlines())]
    rows = measured_rows()
    assert len(rows) > 15
    missing = [
        (row[0].strip(), figure)
        for row in rows
        for figure in figures_of(row[1:])
        if not any(is_rounded_from(figure, one) for one in measured)
    ]
    assert missing == []


def test_a_figure_may_only_be_rounded() -> None:
    assert is_rounded_from("1753000", 1_752_732)
    assert is_rounded_from("9.0", 9.04)
    assert not is_rounded_from("1752000", 1_752_732)
    assert not is_rounded_from("9.0", 9.1)
    assert not is_rounded_from("8447", 8_448)
