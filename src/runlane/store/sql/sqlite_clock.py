"""The clock of a SQLite file: the host's time of day when the file was opened, and monotonic from then on.

Every process that has the file open uses the same offset between the two clocks, so a change of the host's time of day
ends no lease and starts no run. The offset is stored beside the database in the file `NAME-clock`, which every process
maps into its memory and holds a shared lock on. A process that opens a database which no other process has open stores
a new offset.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final, Self

# This clock continues while the host is suspended. On systems other than Linux, CLOCK_MONOTONIC does so itself.
_STEADY: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_SUFFIX: Final = "-clock"
_OFFSET: Final = struct.Struct("=q")


class SqliteClock:
    """The time of one database file, in microseconds since the epoch."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._offset = mmap.mmap(descriptor, _OFFSET.size)

    @classmethod
    def open(cls, database: Path) -> Self:
        """Take part in the clock of the processes that have this database open."""
        path = database.with_name(database.name + _SUFFIX)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                _write_if_alone(descriptor)
                # This waits for a process that is writing. No other process writes until the lock is released.
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                if os.fstat(descriptor).st_size >= _OFFSET.size:
                    return cls(descriptor)
                # The process that created the file ended before it wrote.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        except BaseException:
            os.close(descriptor)
            raise

    def now_us(self) -> int:
        """Return the time in microseconds since the epoch."""
        return _steady_us() + _OFFSET.unpack_from(self._offset)[0]

    def advance(self, microseconds: int) -> None:
        """Move the time forward in every process that has the database open. Only tests do this."""
        _OFFSET.pack_into(self._offset, 0, _OFFSET.unpack_from(self._offset)[0] + microseconds)

    def close(self) -> None:
        """Release the lock. The first process that opens the database after the last one did so stores a new offset."""
        if self._descriptor >= 0:
            self._offset.close()
            os.close(self._descriptor)
            self._descriptor = -1


def _write_if_alone(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    os.pwrite(descriptor, _OFFSET.pack(time.time_ns() // 1000 - _steady_us()), 0)


def _steady_us() -> int:
    return time.clock_gettime_ns(_STEADY) // 1000
