"""`runlane plan`: how many workers, connections and gigabytes a load needs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from runlane.cli.options import Json
from runlane.cli.output import print_json
from runlane.cli.terminal import write_line
from runlane.domain.text import counted

_MEGABYTE = 1_000_000
_GIGABYTE = 1_000_000_000


def plan(
    runs_per_second: Annotated[float, typer.Option(min=0.001, help="Runs that start per second in the busiest hour.")],
    run_seconds: Annotated[float, typer.Option(min=0, help="Execution time of a run, without waits for people.")],
    steps: Annotated[int, typer.Option(min=1, help="Number of steps of a run; 1 for a task.")] = 1,
    events: Annotated[int, typer.Option(min=0, help="Number of further events of a run, such as log lines.")] = 0,
    bytes_per_run: Annotated[int, typer.Option(min=0, help="Size of the input, outputs and result of a run.")] = 0,
    followers: Annotated[int, typer.Option(min=0, help="Number of concurrently open event streams.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Slots of a worker (RUNLANE_CONCURRENCY).")] = 50,
    connections: Annotated[
        int, typer.Option(min=2, help="Connections of a process (RUNLANE_DATABASE_CONNECTIONS).")
    ] = 8,
    retention_days: Annotated[float, typer.Option(min=0, help="How long runs are kept (RUNLANE_RETENTION_DAYS).")] = 30,
    busy_hours: Annotated[float, typer.Option(min=0, max=24, help="Hours per day with this load.")] = 24,
    json: Json = False,
) -> None:
    """Estimate workers, connections, memory and disk for a load, from measured figures. Needs no database."""
    from runlane.domain.capacity import SLOT_HEADROOM, Load
    from runlane.domain.capacity import plan as compute

    load = Load(
        runs_per_second,
        run_seconds,
        steps=steps,
        events=events,
        bytes_per_run=bytes_per_run,
        followers=followers,
        concurrency=concurrency,
        connections_per_process=connections,
        retention_days=retention_days,
        busy_hours_per_day=busy_hours,
    )
    needed = compute(load)
    if json:
        print_json(asdict(needed))
        return
    rows = [
        ("slots", f"{needed.slots:,}", f"runs per second x seconds, and {SLOT_HEADROOM - 1:.0%} more"),
        ("workers", f"{needed.workers:,}", f"{counted(concurrency, 'slot')} each, at most half busy, at least two"),
        ("memory of a worker", f"{needed.worker_memory_bytes / _MEGABYTE:,.0f} MB", "without what your code uses"),
        ("servers", f"{needed.servers:,}", "at most half busy, at least two"),
        ("memory of a server", f"{needed.server_memory_bytes / _MEGABYTE:,.0f} MB", "with its share of the streams"),
        ("open files of a server", f"{needed.open_files_per_server:,}", "ulimit -n"),
        ("connections", f"{needed.connections:,}", "max_connections of Postgres, or the pool of PgBouncer"),
        ("WAL", f"{needed.wal_bytes_per_second / _MEGABYTE:,.2f} MB/s", "in the busiest hour"),
        ("events per day", f"{needed.events_per_day:,}", f"{busy_hours:g} busy hours"),
        ("rows per day", f"{needed.rows_per_day:,}", "of all tables, events included"),
        ("disk per day", f"{needed.disk_bytes_per_day / _GIGABYTE:,.2f} GB", f"{busy_hours:g} busy hours"),
        ("disk kept", f"{needed.disk_bytes_kept / _GIGABYTE:,.1f} GB", f"{retention_days:g} days"),
    ]
    for label, value, remark in rows:
        write_line(f"{label:<24} {value:>14}   {remark}")
