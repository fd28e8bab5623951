"""The sink stores the effects of the chaos tests' tasks outside of the database under test.

It checks the fence as a careful receiver would: it refuses an attempt that is older than the newest one of the run,
and it performs a run's effect once however often it is requested. Begins and ends have times of the system-wide
monotonic clock, so that tests can check order and overlap across processes.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
create table if not exists spans(
    run_id text, attempt integer, pid integer, label text, started_ns integer, ended_ns integer,
    primary key (run_id, attempt));
create table if not exists effects(run_id text primary key, attempt integer, label text, at_ns integer);
create table if not exists calls(no integer primary key, run_id text, attempt integer, verdict text, at_ns integer);
"""


@dataclass(frozen=True, slots=True)
class Span:
    """One attempt as its task recorded it; `ended_ns` is None when it was killed before its end."""

    run_id: str
    attempt: int
    pid: int
    label: str
    started_ns: int
    ended_ns: int | None


@dataclass(frozen=True, slots=True)
class Call:
    """One request for an effect: `new`, `repeat` (the effect had happened) or `stale` (refused by the fence)."""

    run_id: str
    attempt: int
    verdict: str
    at_ns: int


class Sink:
    """One connection to the sink's file."""

    def __init__(self, path: Path) -> None:
        self._link = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
        self._link.execute("pragma journal_mode=wal")
        self._link.execute("pragma synchronous=off")
        self._link.executescript(_SCHEMA)
        # Plain functions share the connection from their threads, and a transaction belongs to the connection.
        self._alone = threading.Lock()

    def close(self) -> None:
        self._link.close()

    def begin(self, run_id: str, attempt: int, label: str = "") -> None:
        """Record that an attempt began."""
        row = (run_id, attempt, os.getpid(), label, time.monotonic_ns())
        with self._alone:
            self._link.execute("insert into spans values (?, ?, ?, ?, ?, null)", row)

    def end(self, run_id: str, attempt: int) -> None:
        """Record that an attempt ended without its effect."""
        row = (time.monotonic_ns(), run_id, attempt)
        with self._alone:
            self._link.execute("update spans set ended_ns = ? where run_id = ? and attempt = ?", row)

    def complete(self, run_id: str, attempt: int, label: str = "") -> str:
        """Perform the run's effect, and end the attempt's span."""
        with self._alone:
            return self._complete(run_id, attempt, label)

    def _complete(self, run_id: str, attempt: int, label: str) -> str:
        self._link.execute("begin immediate")
        now = time.monotonic_ns()
        (newest,) = self._link.execute("select max(attempt) from spans where run_id = ?", (run_id,)).fetchone()
        if newest is not None and newest > attempt:
            verdict = "stale"
        else:
            insert = "insert or ignore into effects values (?, ?, ?, ?)"
            done = self._link.execute(insert, (run_id, attempt, label, now))
            verdict = "new" if done.rowcount else "repeat"
        self._link.execute("insert into calls values (null, ?, ?, ?, ?)", (run_id, attempt, verdict, now))
        end = "update spans set ended_ns = ? where run_id = ? and attempt = ?"
        self._link.execute(end, (now, run_id, attempt))
        self._link.execute("commit")
        return verdict

    def spans(self) -> list[Span]:
        """Return every span, by its beginning."""
        return [Span(*row) for row in self._link.execute("select * from spans order by started_ns")]

    def calls(self) -> list[Call]:
        """Return every call, in order."""
        return [
            Call(*row) for row in self._link.execute("select run_id, attempt, verdict, at_ns from calls order by no")
        ]

    def effects(self) -> dict[str, int]:
        """Return the attempt that performed each run's effect."""
        return dict(self._link.execute("select run_id, attempt from effects").fetchall())
