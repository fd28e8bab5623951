"""Capacity: slots, workers, connections, rows and bytes for a load, computed from measured figures.

The figures are those of `docs/how-to/capacity.md`: two cores that client, worker and Postgres share, and small inputs.
They bound an estimate from below; a load test of your own runs replaces it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

# One worker process, measured: runs that do nothing, and steps that print, each recorded with its events.
RUNS_PER_SECOND: Final = 4_710.0
STEPS_PER_SECOND: Final = 2_975.0
# One server process, measured: runs accepted over HTTP by 50 clients.
ACCEPTS_PER_SECOND: Final = 2_705.0
# Bytes of write-ahead log and of stored rows in Postgres, measured with small inputs and outputs.
RUN_WAL_BYTES, RUN_DISK_BYTES = 3_500, 2_200
STEP_WAL_BYTES, STEP_DISK_BYTES = 1_690, 1_260
EVENT_WAL_BYTES, EVENT_DISK_BYTES = 292, 228
# Stored events, and rows beside them, counted: a run that does nothing, an orchestration, and each of its steps.
RUN_EVENTS, ORCHESTRATION_EVENTS, STEP_EVENTS = 3, 3, 3
RUN_ROWS, STEP_ROWS = 4, 1
# Memory in bytes, measured: an idle worker, a slot whose run waits, an idle follower.
WORKER_BYTES: Final = 81_000_000
SLOT_BYTES: Final = 2_300
FOLLOWER_BYTES: Final = 16_000
# Connections of a process besides RUNLANE_DATABASE_CONNECTIONS: liveness, and notifications without Redis.
EXTRA_CONNECTIONS: Final = 2
# A process is planned for half of its measured maximum, and slots for a third more than the average needs.
UTILIZATION: Final = 0.5
SLOT_HEADROOM: Final = 4 / 3
_DAY_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class Load:
    """The expected load. Rates are those of the busiest hour; sizes and numbers are those of one run."""

    runs_per_second: float
    run_seconds: float
    steps: int = 1
    events: int = 0
    bytes_per_run: int = 0
    followers: int = 0
    concurrency: int = 50
    connections_per_process: int = 8
    retention_days: float = 30.0
    busy_hours_per_day: float = 24.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity that a load needs. `servers` is at least two, so that one of them may be replaced."""

    slots: int
    workers: int
    servers: int
    connections: int
    wal_bytes_per_second: int
    events_per_day: int
    rows_per_day: int
    disk_bytes_per_day: int
    disk_bytes_kept: int
    worker_memory_bytes: int
    server_memory_bytes: int
    open_files_per_server: int


def plan(load: Load) -> Capacity:
    """Return the capacity that a load needs."""
    # Little's law: the runs in execution are the arrivals in the time that one takes.
    slots = max(1, math.ceil(load.runs_per_second * load.run_seconds * SLOT_HEADROOM))
    busy_seconds = 1 / RUNS_PER_SECOND + max(load.steps - 1, 0) / STEPS_PER_SECOND
    by_cpu = math.ceil(load.runs_per_second * busy_seconds / UTILIZATION)
    workers = max(2, math.ceil(slots / load.concurrency), by_cpu)
    servers = max(2, math.ceil(load.runs_per_second / ACCEPTS_PER_SECOND / UTILIZATION))
    further = max(load.steps - 1, 0)
    wal = RUN_WAL_BYTES + further * STEP_WAL_BYTES + load.events * EVENT_WAL_BYTES + load.bytes_per_run
    disk = RUN_DISK_BYTES + further * STEP_DISK_BYTES + load.events * EVENT_DISK_BYTES + load.bytes_per_run
    runs_per_day = load.runs_per_second * load.busy_hours_per_day / 24 * _DAY_SECONDS
    per_day = runs_per_day * disk
    steps = load.steps if load.steps > 1 else 0
    events = RUN_EVENTS + (ORCHESTRATION_EVENTS if steps else 0) + steps * STEP_EVENTS + load.events
    followers = math.ceil(load.followers / servers)
    return Capacity(
        slots=slots,
        workers=workers,
        servers=servers,
        connections=(workers + servers) * (load.connections_per_process + EXTRA_CONNECTIONS),
        wal_bytes_per_second=math.ceil(load.runs_per_second * wal),
        events_per_day=math.ceil(runs_per_day * events),
        rows_per_day=math.ceil(runs_per_day * (RUN_ROWS + steps * STEP_ROWS + events)),
        disk_bytes_per_day=math.ceil(per_day),
        disk_bytes_kept=math.ceil(per_day * load.retention_days),
        worker_memory_bytes=WORKER_BYTES + load.concurrency * (SLOT_BYTES + load.bytes_per_run),
        server_memory_bytes=WORKER_BYTES + followers * FOLLOWER_BYTES,
        # Streams, connections to the database, and a reserve for requests.
        open_files_per_server=followers + load.connections_per_process + EXTRA_CONNECTIONS + 1024,
    )
