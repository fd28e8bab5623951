"""Log an outage of the database once per process, even if many loops detect it.

If the database is unavailable, every loop of a process fails several times a second. One warning reports the outage,
reminders with the number of failures follow at intervals, and one line reports that the database is available again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger(__name__)

_REMINDER_SECONDS: Final = 30.0
# A success between failures does not end an outage, because some connections may still work.
_QUIET_SECONDS: Final = 1.0


class OutageLog:
    """Records failures and successes of one database. It may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began_at = self._failed_at = self._logged_at = 0.0
        # Failures since the outage began; 0 without an outage.
        self._failures = 0

    def failed(self, during: str, error: str) -> None:
        """Record that the database did not respond."""
        now = self._clock()
        with self._lock:
            first = self._failures == 0
            self._failures += 1
            self._failed_at = now
            began_at = self._began_at = now if first else self._began_at
            if not first and now - self._logged_at < _REMINDER_SECONDS:
                return
            self._logged_at, failures = now, self._failures
        if first:
            log.warning("database_away", during=during, error=error)
        else:
            log.warning("database_still_away", seconds=round(now - began_at, 1), failures=failures, error=error)

    def succeeded(self) -> None:
        """Record that the database responded. Without an outage, this is cheap."""
        if not self._failures:
            return
        now = self._clock()
        with self._lock:
            if not self._failures or now - self._failed_at < _QUIET_SECONDS:
                return
            seconds, failures = now - self._began_at, self._failures
            self._failures = 0
        log.info("database_back", seconds=round(seconds, 1), failures=failures)


outage: Final = OutageLog()
