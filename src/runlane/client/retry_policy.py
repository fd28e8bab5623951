"""How often and how long a client retries while a server does not respond."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runlane.domain.backoff import backoff_seconds


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The backoff grows from `first_seconds` to `longest_seconds`. After `give_up_seconds` a call fails.

    If a local server has never responded and refuses connections, calls fail after `local_seconds`, because the server
    is probably not running. When a server has not responded for a second, `waiting` is called with the reason.
    """

    first_seconds: float = 0.1
    longest_seconds: float = 5.0
    give_up_seconds: float = 60.0
    local_seconds: float = 1.8
    waiting: Callable[[str], None] | None = None

    def wait_seconds(self, tries: int, jitter: float, requested_seconds: float | None = None) -> float:
        """Return the wait after this many attempts. It is never shorter than the server requested.

        `jitter` in [0, 1) distributes the retries of many clients when a server returns.
        """
        own = backoff_seconds(tries, jitter, first_seconds=self.first_seconds, longest_seconds=self.longest_seconds)
        return max(own, requested_seconds or 0.0)
