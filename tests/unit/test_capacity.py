"""The estimate of `runlane plan`: it follows from the load, and its figures are those that the how-to lists."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from runlane.cli.commands import cli
from runlane.domain import capacity
from runlane.domain.capacity import Load, plan

HOW_TO = (Path(__file__).parents[2] / "docs" / "how-to" / "capacity.md").read_text()
AGENTS = Load(runs_per_second=5, run_seconds=60, steps=10, events=20, followers=1000)


def test_slots_follow_littles_law_and_workers_their_slots() -> None:
    needed = plan(AGENTS)
    assert needed.slots == 400
    assert needed.workers == 8
    assert (needed.servers, needed.connections) == (2, 100)
    assert needed.wal_bytes_per_second == 5 * (3_500 + 9 * 1_690 + 20 * 292)
    assert needed.events_per_day == 5 * 86_400 * (3 + 3 + 10 * 3 + 20)
    assert needed.rows_per_day == 5 * 86_400 * (4 + 10 + 3 + 3 + 10 * 3 + 20)
    task = plan(Load(runs_per_second=1, run_seconds=1, busy_hours_per_day=12))
    assert (task.events_per_day, task.rows_per_day) == (3 * 43_200, 7 * 43_200)


def test_short_runs_need_workers_for_their_computing_not_for_their_slots() -> None:
    needed = plan(Load(runs_per_second=20_000, run_seconds=0.001))
    assert needed.slots == 27
    assert needed.workers == 9


@given(
    rate=st.floats(0.001, 10_000),
    seconds=st.floats(0, 3600),
    more=st.floats(1, 10),
    steps=st.integers(1, 100),
    followers=st.integers(0, 100_000),
)
def test_a_larger_load_never_needs_less(rate: float, seconds: float, more: float, steps: int, followers: int) -> None:
    load = Load(rate, seconds, steps=steps, followers=followers)
    small, large = plan(load), plan(replace(load, runs_per_second=rate * more))
    for name in ("slots", "workers", "servers", "connections", "wal_bytes_per_second", "disk_bytes_kept"):
        assert getattr(small, name) <= getattr(large, name)


def test_the_figures_are_published() -> None:
    rows = re.findall(r"^\| [^|]+ \| ([\d,]+(?: / [\d,]+)*) \|$", HOW_TO, re.MULTILINE)
    assert [[float(figure.replace(",", "")) for figure in row.split(" / ")] for row in rows] == [
        [capacity.RUNS_PER_SECOND],
        [capacity.STEPS_PER_SECOND],
        [capacity.ACCEPTS_PER_SECOND],
        [capacity.WORKER_BYTES],
        [capacity.SLOT_BYTES],
        [capacity.FOLLOWER_BYTES],
        [capacity.RUN_WAL_BYTES, capacity.STEP_WAL_BYTES, capacity.EVENT_WAL_BYTES],
        [capacity.RUN_DISK_BYTES, capacity.STEP_DISK_BYTES, capacity.EVENT_DISK_BYTES],
        [capacity.RUN_EVENTS, capacity.ORCHESTRATION_EVENTS, capacity.STEP_EVENTS],
        [capacity.RUN_ROWS, capacity.STEP_ROWS],
    ]


def test_the_command_prints_what_the_model_computes() -> None:
    options = [
        "--runs-per-second",
        "5",
        "--run-seconds",
        "60",
        "--steps",
        "10",
        "--events",
        "20",
        "--followers",
        "1000",
    ]
    printed = CliRunner().invoke(cli, ["plan", *options])
    assert printed.exit_code == 0
    assert printed.stdout in HOW_TO
    needed = json.loads(CliRunner().invoke(cli, ["plan", *options, "--json"]).stdout)
    assert needed["connections"] == plan(AGENTS).connections
