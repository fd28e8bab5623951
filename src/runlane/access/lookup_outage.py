"""Whether lookups of keys reach the database, so that requests do not each wait for a database that does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from runlane.errors import Unavailable

# A failure is assumed to continue for this time, and as long as a lookup is in progress.
_ASSUMED_SECONDS: Final = 5.0


class LookupOutage:
    """Records the outcomes of lookups. Any answer of the database ends an outage."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed_at: float | None = None
        self.lookups = 0
        self.answers = 0

    @property
    def is_on(self) -> bool:
        """Whether the database is assumed to be unavailable."""
        if self._failed_at is None:
            return False
        return self.lookups > 0 or self._clock() - self._failed_at < _ASSUMED_SECONDS

    def failed(self) -> None:
        """Record that the database is unavailable."""
        self._failed_at = self._clock()

    @contextmanager
    def observed(self) -> Generator[None]:
        """Record the outcome of a lookup."""
        self.lookups += 1
        try:
            yield
        except Unavailable:
            self.failed()
            raise
        else:
            self.answers += 1
            self._failed_at = None
        finally:
            self.lookups -= 1
