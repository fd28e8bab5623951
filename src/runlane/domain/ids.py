"""Ids: a prefix for the type, and a UUIDv7, so that ids sort by the time of their creation.

Python before 3.14 has no uuid7; this follows RFC 9562 with a counter in the 12 random bits after the milliseconds, so
that ids that one process creates within one millisecond sort in the order of their creation.
"""

from __future__ import annotations

import os
import re
import threading
import time
from hashlib import blake2b
from typing import Final

_lock = threading.Lock()
_last_ms = 0
_counter = 0
# Random bytes for the next ids. Each call of the system releases the interpreter's lock, and under load another thread
# takes it, so one call serves many ids. A forked process must not use the bytes of its parent.
_random = b""
_RANDOM_BYTES: Final = 4096

# A wait inside a step is named STEP!KEY; the path of a step cannot contain an exclamation mark.
INSIDE = "!"

_DIGITS: Final = 32
# A prefix of a run's id, or all of it.
RUN_ID_PREFIX: Final = rf"^run_[0-9a-f]{{0,{_DIGITS}}}$"
_RUN_PREFIX: Final = "run_"
_RUN_ID_PREFIX: Final = re.compile(RUN_ID_PREFIX)


def new_id(prefix: str) -> str:
    """Return a new id such as run_0192f3…; later ids of one process sort after earlier ones."""
    return new_ids(prefix, 1)[0]


def new_ids(prefix: str, count: int) -> list[str]:
    """Return new ids. Several at once cost a third of what they cost one by one."""
    global _last_ms, _counter, _random  # noqa: PLW0603 - the monotonic counter is per process by definition
    made: list[str] = []
    with _lock:
        now_ms = time.time_ns() // 1_000_000
        for _ in range(count):
            if now_ms > _last_ms:
                _last_ms, _counter = now_ms, int.from_bytes(os.urandom(2), "big") & 0x3FF
            else:
                # The clock stopped or went back: stay on the last millisecond and continue counting.
                _counter += 1
                if _counter > 0xFFF:
                    _last_ms, _counter = _last_ms + 1, 0
            if not _random:
                _random = os.urandom(_RANDOM_BYTES)
            chosen, _random = _random[:8], _random[8:]
            value = (_last_ms << 80) | (0x7 << 76) | (_counter << 64) | (0b10 << 62)
            value |= int.from_bytes(chosen, "big") & 0x3FFF_FFFF_FFFF_FFFF
            made.append(f"{prefix}_{value:032x}")
    return made


def _forget_random() -> None:
    global _random  # noqa: PLW0603 - see above
    _random = b""


os.register_at_fork(after_in_child=_forget_random)


def is_run_id_prefix(text: str) -> bool:
    """Return whether ids of runs can begin with this text."""
    return _RUN_ID_PREFIX.fullmatch(text) is not None


def is_whole_run_id(text: str) -> bool:
    """Return whether this is the id of one run, with all its digits."""
    return is_run_id_prefix(text) and len(text) == len(_RUN_PREFIX) + _DIGITS


def run_id_range(prefix: str) -> tuple[str, str]:
    """Return the lowest run id with this prefix, and a string just above the highest.

    Both have all digits, so that they compare with ids the same way under every collation of a database.
    """
    missing = _DIGITS - (len(prefix) - len(_RUN_PREFIX))
    return prefix + "0" * missing, prefix + "f" * missing + "0"


def run_id_at(at_us: int) -> str:
    """Return the lowest id of a run that is made at this time or later."""
    ms = min(max(0, at_us // 1000), (1 << 48) - 1)
    return f"{_RUN_PREFIX}{ms << 80:0{_DIGITS}x}"


def run_id_time_us(run_id: str) -> int:
    """Return when an id of a run was made, to the millisecond."""
    return (int(run_id.removeprefix(_RUN_PREFIX), 16) >> 80) * 1000


def lock_key(*parts: str) -> int:
    """Return a signed 64-bit number for an advisory lock, the same in every process for the same parts."""
    digest = blake2b("\x1f".join(("runlane", *parts)).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big", signed=True)
