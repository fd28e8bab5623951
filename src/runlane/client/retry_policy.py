"""Patience: how a client waits for a server that does not answer, and when it gives up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Waits between tries grow from `first_seconds` to `longest_seconds`; after `give_up_seconds` it is an error.

    A server on this machine that has never answered and refuses connections is given up after `local_seconds`, since
    it is most likely not running.

    `waiting` is called with the reason once a server has not answered for a second, and the client goes on trying.
    """

    first_seconds: float = 0.1
    longest_seconds: float = 5.0
    give_up_seconds: float = 60.0
    local_seconds: float = 1.8
    waiting: Callable[[str], None] | None = None

    def wait_seconds(self, tries: int, jitter: float, asked_seconds: float | None = None) -> float:
        """How long to wait after so many tries; never shorter than the server asked for.

        `jitter` in [0, 1) keeps the clients of a server that comes back from arriving all at once.
        """
        full = min(self.longest_seconds, self.first_seconds * 2.0 ** min(max(tries, 1) - 1, 16))
        return max(full * (0.5 + 0.5 * jitter), asked_seconds or 0.0)
