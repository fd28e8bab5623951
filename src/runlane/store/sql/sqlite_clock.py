"""The clock of a SQLite file: the host's time of day when the file was opened, and monotonic from then on.

Every process that has the file open uses the same offset between the two clocks, so a change of the host's time of day
ends no lease and starts no run. The offset is in a file next to the database, `NAME-clock`, under a shared lock. The
first process that opens a database determines the offset again.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final, Self

# Continues while the host is suspended. Elsewhere than on Linux, CLOCK_MONOTONIC does so itself.
_STEADY: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_SUFFIX: Final = "-clock"
_DIGITS: Final = 20


class SqliteClock:
    """The time of one database file, in microseconds since the epoch."""

    def __init__(self, descriptor: int, offset_us: int) -> None:
        self._descriptor = descriptor
        self._offset_us = offset_us

    @classmethod
    def open(cls, database: Path) -> Self:
        """Join the clock of the processes that have this database open."""
        path = database.with_name(database.name + _SUFFIX)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                _write_if_alone(descriptor)
                # Waits for a process that is writing. Until the lock is released no other process writes.
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                digits = os.pread(descriptor, _DIGITS, 0)
                if len(digits) == _DIGITS:
                    return cls(descriptor, int(digits))
                # The process that created the file ended before it wrote.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        except BaseException:
            os.close(descriptor)
            raise

    def now_us(self) -> int:
        """Return the time in microseconds since the epoch."""
        return _steady_us() + self._offset_us

    def close(self) -> None:
        """Release the lock. After the last process has released it, the next one determines the offset again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _write_if_alone(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    offset_us = time.time_ns() // 1000 - _steady_us()
    # The width never changes, so one write replaces the old offset as a whole.
    os.pwrite(descriptor, f"{offset_us:0{_DIGITS}d}".encode(), 0)


def _steady_us() -> int:
    return time.clock_gettime_ns(_STEADY) // 1000
