"""The clock of a SQLite file does not follow the host's time of day while any process has the file open."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from runlane.store.sql.database import read_clock
from runlane.store.sql.sqlite import SqliteDatabase
from runlane.store.sql.sqlite_clock import SqliteClock

HOUR_US = 3_600_000_000


def wall_us() -> int:
    return time.time_ns() // 1000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def test_a_jump_of_the_time_of_day_has_no_effect_on_an_open_database(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await SqliteDatabase.open(path, 5.0)
    before = await read_clock(database)
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + HOUR_US * 1000)
    second = await SqliteDatabase.open(path, 5.0)
    try:
        for opened in (database, second):
            assert before <= await read_clock(opened) < before + HOUR_US // 2
    finally:
        await database.close()
        await second.close()
    third = await SqliteDatabase.open(path, 5.0)
    try:
        assert await read_clock(third) >= before + HOUR_US
    finally:
        await third.close()


def test_another_process_uses_the_same_offset(path: Path) -> None:
    script = (
        "import sys, time; real = time.time_ns; time.time_ns = lambda: real() + 3_600_000_000_000\n"
        "from pathlib import Path; from runlane.store.sql.sqlite_clock import SqliteClock\n"
        "print(SqliteClock.open(Path(sys.argv[1])).now_us())"
    )
    own = SqliteClock.open(path)
    try:
        before = own.now_us()
        done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
        assert before <= int(done.stdout) <= own.now_us()
    finally:
        own.close()


def test_a_file_that_was_created_and_not_written_is_written_by_the_next_process(path: Path) -> None:
    path.with_name(path.name + "-clock").touch()
    clock = SqliteClock.open(path)
    assert abs(clock.now_us() - wall_us()) < HOUR_US
    clock.close()
