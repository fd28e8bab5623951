"""Backoff: the wait after failures is exponential, never above a cap, and mostly with jitter."""

from __future__ import annotations

BASE_SECONDS = 1.0
CAP_SECONDS = 60.0
# A larger exponent would overflow, and the wait is at its cap long before.
_MAX_DOUBLINGS = 62


def growing_seconds(failures: int, first_seconds: float, longest_seconds: float) -> float:
    """Return the wait after a number of failures without jitter: it doubles with each one."""
    return min(longest_seconds, first_seconds * 2.0 ** min(max(failures, 1) - 1, _MAX_DOUBLINGS))


def backoff_seconds(
    failures: int, jitter: float, *, first_seconds: float = BASE_SECONDS, longest_seconds: float = CAP_SECONDS
) -> float:
    """Return the wait after a number of failures; `jitter` in [0, 1) spreads those that fail together.

    The wait is between half of the exponential value and all of it, so that it grows and still spreads.
    """
    return growing_seconds(failures, first_seconds, longest_seconds) * (0.5 + 0.5 * jitter)
