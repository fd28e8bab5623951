"""A limit on sign-in attempts, per network address and process, so that keys cannot be guessed in bulk."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from runlane.errors import RateLimited

ATTEMPTS: Final = 10
WINDOW_SECONDS: Final = 60.0
# The maximum number of stored addresses. Beyond it, the addresses with the oldest attempts are removed.
_MAX_ADDRESSES: Final = 10_000


class SignInLimited(RateLimited):
    """The address has made too many sign-in attempts."""

    code = "sign_in_limited"
    limit = "sign-in"


class SignInLimit:
    """Counts attempts in a window that begins with the first attempt."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def count(self, address: str) -> None:
        """Count an attempt. Raise SignInLimited beyond the limit."""
        now = self._clock()
        since, attempts = self._windows.pop(address, (now, 0))
        if now - since >= WINDOW_SECONDS:
            since, attempts = now, 0
        self._windows[address] = (since, attempts + 1)
        while len(self._windows) > _MAX_ADDRESSES:
            self._windows.popitem(last=False)
        if attempts >= ATTEMPTS:
            raise SignInLimited(
                f"This address has made more than {ATTEMPTS} sign-in attempts within a minute. Wait, then retry.",
                since + WINDOW_SECONDS - now,
            )
