"""Run the measurements and write JSON, table and plot; or render the table of an earlier JSON file."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import datetime
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from pathlib import Path
from types import FrameType

import structlog

from bench.conditions import conditions
from bench.measures import (
    GRAPH_PEER,
    QUICK,
    STEP_PEER,
    SYSTEMS,
    Sizes,
    accept,
    agents,
    arrival,
    claims,
    concurrency,
    dashboard,
    drain,
    fairness,
    flow_control,
    footprint,
    graphs,
    http,
    idle,
    idle_followers,
    latency,
    limit,
    lists,
    long,
    memory,
    memory_adds,
    memory_search,
    permits,
    schedules,
    steps,
    stream,
    takeover,
    tokens,
    webhooks,
)
from bench.plot import plot
from bench.process import ROOT
from bench.samples import Report, Sample, load, save
from bench.servers import Servers, start_servers
from bench.table import render, unsteady

MEASURES: dict[str, Callable[[Servers, Sizes], AsyncGenerator[Sample]]] = {
    "drain": drain.measure,
    "limit": limit.measure,
    "accept": accept.measure,
    "http": http.measure,
    "latency": latency.measure,
    "steps": steps.measure,
    "takeover": takeover.measure,
    "claims": claims.measure,
    "memory": memory.measure,
    "memory_adds": memory_adds.measure,
    "memory_search": memory_search.measure,
    "idle": idle.measure,
    "long": long.measure,
    "stream": stream.measure,
    "arrival": arrival.measure,
    "followers": idle_followers.measure,
    "tokens": tokens.measure,
    "agents": agents.measure,
    "permits": permits.measure,
    "graphs": graphs.measure,
    "fairness": fairness.measure,
    "concurrency": concurrency.measure,
    "flow_control": flow_control.measure,
    "schedules": schedules.measure,
    "lists": lists.measure,
    "webhooks": webhooks.measure,
    "dashboard": dashboard.measure,
    "footprint": footprint.measure,
}

_KNOWN = [*SYSTEMS, STEP_PEER, GRAPH_PEER]


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if options.table is not None:
        report = load(options.table)
        print(render(report))
        if options.plot is not None:
            plot(report, options.plot)
        return
    # A worker in this process would log its start and stop between the figures.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    sizes = QUICK if options.quick else Sizes()
    if options.repeats is not None:
        sizes = dataclasses.replace(sizes, repeats=options.repeats)
    sizes = dataclasses.replace(sizes, systems=tuple(options.systems))
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    name = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S") + ("-quick" if options.quick else "")
    # On SIGTERM it must still stop its workers; a shell may have set SIGINT to be ignored.
    signal.signal(signal.SIGTERM, _exit)
    with start_servers(out / f"{name}.log") as servers:
        report = asyncio.run(_run(servers, sizes, options.only, out / f"{name}.json"))
    if not options.no_plot:
        plot(report, out / name)
    print(f"\n{render(report)}\n")
    for group in unsteady(report):
        print(f"unsteady, repeat on a calm machine: {group}")
    print(f"load before {report.conditions['load_before']}, after {[round(value, 2) for value in os.getloadavg()]}")
    print(f"every sample: {out / name}.json, workers' output: {out / name}.log")


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(f"ended by {signal.Signals(number).name}")


async def _run(servers: Servers, sizes: Sizes, only: Sequence[str], path: Path) -> Report:
    report = Report(conditions(await servers.settings(), sizes), [])
    shown = ", ".join(f"{key}={value}" for key, value in report.conditions["postgres"].items())
    print(f"Postgres: {shown}", flush=True)
    for name in only:
        started = time.monotonic()
        async for sample in MEASURES[name](servers, sizes):
            report.samples.append(sample)
            print(_describe(sample), flush=True)
            # Save after each sample, so that an interrupted run keeps its results.
            save(report, path)
        print(f"{name} took {time.monotonic() - started:.0f} s", flush=True)
    return report


def _describe(sample: Sample) -> str:
    values = sorted(sample.values)
    if not values:
        figure = "-"
    elif len(values) == 1:
        figure = f"{values[0]:,.1f}"
    else:
        figure = f"p50 {values[len(values) // 2]:,.2f}, max {values[-1]:,.2f} of {len(values)}"
    source = f"{sample.measure:9} {sample.system:14} {sample.variant:28}"
    return f"{source} repeat {sample.repeat}: {figure} {sample.unit}  (load {sample.load}) {sample.remark}"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Compare Runlane with its peers.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one repeat: checks that the benchmarks work")
    parser.add_argument("--only", type=_measures, default=list(MEASURES), help=f"some of {','.join(MEASURES)}")
    parser.add_argument("--systems", type=_systems, default=_KNOWN, help=f"some of {','.join(_KNOWN)}")
    parser.add_argument("--no-plot", action="store_true", help="write no plot")
    parser.add_argument("--repeats", type=int, help="repeats of each measurement (3)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "out", help="folder for the results (bench/out)")
    parser.add_argument("--table", type=Path, metavar="JSON", help="print the table of an earlier run and exit")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="with --table: write PATH.png and PATH.svg as well")
    return parser.parse_args(arguments)


def _measures(text: str) -> list[str]:
    return _parse_names(text, MEASURES)


def _systems(text: str) -> list[str]:
    return _parse_names(text, _KNOWN)


def _parse_names(text: str, known: Collection[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'} is not one of {', '.join(known)}")
    return names


if __name__ == "__main__":
    main(sys.argv[1:])
