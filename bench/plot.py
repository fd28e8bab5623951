"""Plot drain, accept, start latency and takeover of one run, small enough for the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from bench.samples import Report
from bench.table import LIST, PROCRASTINATE, RUNLANE, STREAM

_NAMES = {RUNLANE: "Runlane", PROCRASTINATE: "Procrastinate", STREAM: "taskiq\nstreams", LIST: "taskiq\nlists"}
_COLOURS = {RUNLANE: "#1f5fa8", PROCRASTINATE: "#8a8a8a", STREAM: "#c9b27c", LIST: "#e0d2b0"}


def plot(report: Report, path: Path) -> None:
    """Write path.png and path.svg."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    figure, axes = cast("Any", plt).subplots(2, 2, figsize=(9, 6), layout="constrained")
    slots = f"{report.conditions['sizes']['slots']} slots"
    _bars(axes[0][0], report, "drain", slots, f"no-op runs drained per second, {slots}")
    _bars(axes[0][1], report, "accept", "one at a time", "runs accepted per second, one at a time")
    _latency(axes[1][0], report)
    _takeover(axes[1][1], report)
    sizes = report.conditions["sizes"]
    title = f"{report.conditions['cpu_count']} cores, fsync on, median of {sizes['repeats']}; not durable: taskiq"
    figure.suptitle(title, fontsize=9)
    figure.savefig(path.with_suffix(".png"), dpi=80)
    figure.savefig(path.with_suffix(".svg"))
    cast("Any", plt).close(figure)


def _bars(axis: Any, report: Report, measure: str, variant: str, title: str) -> None:
    found = {system: report.median(measure, system, variant) for system in _NAMES}
    shown = {system: value for system, value in found.items() if value is not None}
    bars = axis.bar([_NAMES[s] for s in shown], list(shown.values()), color=[_COLOURS[s] for s in shown])
    axis.bar_label(bars, labels=[f"{value:,.0f}" for value in shown.values()], fontsize=8)
    axis.set_title(title, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.margins(y=0.12)


def _latency(axis: Any, report: Report) -> None:
    for system in (RUNLANE, PROCRASTINATE, STREAM):
        for variant, style in (("one process", "-"), ("two processes", "--")):
            values = sorted(report.values("latency", system, variant))
            if values:
                # A hundred points show the same curve in a small file.
                points = [values[len(values) * percent // 100] for percent in range(100)]
                label = f"{_NAMES[system].replace(chr(10), ' ')}, {variant}"
                axis.plot(points, range(100), style, color=_COLOURS[system], label=label)
                axis.set_xscale("log")
    axis.set_title("call → function starts, ms (share of tries, %)", fontsize=9)
    axis.tick_params(labelsize=8)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=6, loc="center right")


def _takeover(axis: Any, report: Report) -> None:
    values = report.values("takeover", RUNLANE, "kill -9")
    axis.set_title(f"kill -9 → same run starts elsewhere, s ({len(values)} kills)", fontsize=9)
    axis.tick_params(labelsize=8)
    if values:
        axis.hist(values, bins=[step * 0.25 for step in range(int(max(values) / 0.25) + 2)], color=_COLOURS[RUNLANE])
        axis.axvline(2.5, color="#b03030", linewidth=1, linestyle="--")
