"""A control beside a measurement of latencies: what the machine does to a process that does almost nothing.

Usage: python -m bench.systems.machine_control FILE. One thread wakes every millisecond, another writes as much as a
commit of a memory node and waits for the disk, every five milliseconds. At the end of its input it prints by how much
the wake-ups were late and how long the disk took, in milliseconds, as JSON.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Final

import orjson

_WAKE_SECONDS: Final = 0.001
_SYNC_SECONDS: Final = 0.005
_SYNC_BYTES: Final = 200_000


def _wake(late: list[float]) -> None:
    while True:
        began = time.perf_counter()
        time.sleep(_WAKE_SECONDS)
        late.append((time.perf_counter() - began - _WAKE_SECONDS) * 1000)


def _sync(path: str, took: list[float]) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    content = b"x" * _SYNC_BYTES
    while True:
        began = time.perf_counter()
        # The same place each time, like a write-ahead log that is used from its beginning again.
        os.pwrite(descriptor, content, 0)
        os.fdatasync(descriptor)
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(_SYNC_SECONDS)


def main() -> None:
    late: list[float] = []
    took: list[float] = []
    threading.Thread(target=_wake, args=(late,), daemon=True).start()
    threading.Thread(target=_sync, args=(sys.argv[1], took), daemon=True).start()
    # The measurement begins after this line, and not while the interpreter starts.
    print(flush=True)
    sys.stdin.read()
    sys.stdout.buffer.write(orjson.dumps([late.copy(), took.copy()]))


if __name__ == "__main__":
    main()
