"""The survey of a heartbeat: find the maintenance services that have work, in the transaction of the renewal.

It must not endanger the lease: after a slow survey, or a failed renewal with a survey, the next renewals skip it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from runlane.store.maintenance import MaintenanceSurvey, survey_in
from runlane.store.sql.database import Session

# Up to this many workers survey at every heartbeat; more of them take turns.
_WORKERS_AT_ONCE = 4
# The longest time between two surveys of a worker, because all other workers may be lost at once.
_LONGEST_SECONDS = 4.0
_SLOW_SECONDS = 0.1
_REST_SECONDS = 10.0


class HeartbeatSurvey:
    """Decides which heartbeats make a survey."""

    def __init__(self, silence_seconds: float, heartbeat_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self._most_skipped = max(0, int(_LONGEST_SECONDS / heartbeat_seconds) - 1)
        self._rest_until = 0.0
        self._skip = 0
        self.latest: MaintenanceSurvey | None = None
        # Whether the latest renewal skipped the survey because other workers make it.
        self.left_to_others = False

    def job(self) -> Callable[[Session], Awaitable[None]] | None:
        """Return the survey of the next renewal, or None if it is not this worker's turn."""
        self.latest = None
        self.left_to_others = self._skip > 0
        if self.left_to_others:
            self._skip -= 1
            return None
        return None if time.monotonic() < self._rest_until else self._read

    def failed(self) -> None:
        """Note that the renewal failed."""
        self._rest_until = time.monotonic() + _REST_SECONDS

    async def _read(self, session: Session) -> None:
        begun = time.monotonic()
        self.latest = await survey_in(session, self._silence_seconds)
        self._skip = min(self.latest.workers // _WORKERS_AT_ONCE, self._most_skipped)
        if time.monotonic() - begun > _SLOW_SECONDS:
            self.failed()
