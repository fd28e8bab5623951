"""Limits per API key on open streams and concurrent searches, so that one key cannot exhaust a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from runlane.domain.access import Principal
from runlane.errors import RateLimited

_STREAM_RETRY_SECONDS: Final = 5.0
_SEARCH_RETRY_SECONDS: Final = 1.0


class StreamLimited(RateLimited):
    """The key has reached its limit of open streams."""

    code = "stream_limited"
    limit = "streams"

    def __init__(self, principal: Principal, most: int) -> None:
        super().__init__(
            f'The key "{principal.name}" has {most} open streams on this server (RUNLANE_API_MAX_STREAMS_PER_KEY). '
            "Close some of them, or use another key.",
            _STREAM_RETRY_SECONDS,
        )


class SearchLimited(RateLimited):
    """The key has reached its limit of concurrent searches."""

    code = "search_limited"
    limit = "searches"

    def __init__(self, principal: Principal, most: int) -> None:
        super().__init__(
            f'The key "{principal.name}" has {most} searches running on this server '
            "(RUNLANE_API_MAX_SEARCHES_PER_KEY). Wait for their answers.",
            _SEARCH_RETRY_SECONDS,
        )


class KeyQuota:
    """Counts what each key has open in this process and raises `refusal` at the limit."""

    def __init__(self, most: int, refusal: Callable[[Principal, int], RateLimited]) -> None:
        self._most = most
        self._refusal = refusal
        self._open: Counter[str] = Counter()

    def take(self, principal: Principal) -> Callable[[], None]:
        """Count one more for this key and return the function that releases it, which is safe to call twice."""
        key = principal.key_id
        if self._open[key] >= self._most:
            raise self._refusal(principal, self._most)
        self._open[key] += 1
        open_still = True

        def release() -> None:
            nonlocal open_still
            if open_still:
                open_still = False
                self._open[key] -= 1
                if not self._open[key]:
                    del self._open[key]

        return release
