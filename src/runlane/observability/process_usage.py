"""Memory and processor time of this process, without its child processes, for its heartbeat."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

PYTHON: Final = platform.python_version()
_STATM: Final = Path("/proc/self/statm")


class Usage(NamedTuple):
    """Resident memory, and the share of one core since the last sample, which exceeds 100 with several busy threads."""

    memory_bytes: int
    cpu_percent: float


class UsageMeter:
    """Stores the last sample. It must be used from one thread."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._used = time.process_time()

    def sample(self) -> Usage:
        """Return the current memory, and the processor share since the last sample."""
        at, used = time.monotonic(), time.process_time()
        elapsed = max(at - self._at, 1e-6)
        share = 100 * (used - self._used) / elapsed
        self._at, self._used = at, used
        return Usage(resident_bytes(), round(share, 1))


def resident_bytes() -> int:
    """Return the resident memory. If the system does not report it, return the peak."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
