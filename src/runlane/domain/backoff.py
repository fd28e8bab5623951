"""Back-off between the attempts of a run: exponential, with jitter, never above a cap."""

from __future__ import annotations

BASE_SECONDS = 1.0
CAP_SECONDS = 60.0


def backoff_seconds(failures: int, jitter: float) -> float:
    """Return the seconds to wait after a number of failures; `jitter` in [0, 1) spreads runs that fail together.

    The wait is between half of the exponential value and all of it, so that it grows and still spreads.
    """
    full = min(CAP_SECONDS, BASE_SECONDS * 2.0 ** min(failures - 1, 16))
    return full * (0.5 + 0.5 * jitter)
