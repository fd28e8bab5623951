"""Ids: a prefix that says what it is, and a UUIDv7 so that ids sort by the time they were made.

Python before 3.14 has no uuid7; these lines follow RFC 9562 with a counter in the 12 random bits after the
milliseconds, so that ids made by one process within one millisecond sort in the order they were made.
"""

from __future__ import annotations

import os
import threading
import time
from hashlib import blake2b

_lock = threading.Lock()
_last_ms = 0
_counter = 0

# What waits inside a step is named STEP!KEY; an exclamation mark is in no path of a step.
INSIDE = "!"


def new_id(prefix: str) -> str:
    """A new id such as run_0192f3…; later ids of one process sort after earlier ones."""
    global _last_ms, _counter  # noqa: PLW0603 - the monotonic counter is per process by definition
    with _lock:
        now_ms = time.time_ns() // 1_000_000
        if now_ms > _last_ms:
            _last_ms, _counter = now_ms, int.from_bytes(os.urandom(2), "big") & 0x3FF
        else:
            # The clock stood still or went back: stay on the last millisecond and count on.
            _counter += 1
            if _counter > 0xFFF:
                _last_ms, _counter = _last_ms + 1, 0
        value = (_last_ms << 80) | (0x7 << 76) | (_counter << 64) | (0b10 << 62)
    value |= int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF
    return f"{prefix}_{value:032x}"


def lock_key(*parts: str) -> int:
    """A signed 64-bit number for an advisory lock, the same in every process for the same parts."""
    digest = blake2b("\x1f".join(("runlane", *parts)).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big", signed=True)
