"""Limits per API key on open streams and concurrent searches, so that one key cannot occupy a process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from runlane.domain.access import Principal
from runlane.errors import RateLimited

_STREAM_RETRY_SECONDS: Final = 5.0
_SEARCH_RETRY_SECONDS: Final = 1.0
# The longest time that a request waits for its turn, and the number of waiting requests per served request.
_TURN_SECONDS: Final = 1.0
_WAITING_PER_PLACE: Final = 16


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
            "(RUNLANE_API_MAX_SEARCHES_PER_KEY). Wait for their responses.",
            _SEARCH_RETRY_SECONDS,
        )


class KeyQuota:
    """Counts the open streams of each key in this process, and raises `refusal` at the limit."""

    def __init__(self, most: int, refusal: Callable[[Principal, int], RateLimited]) -> None:
        self._most = most
        self._refusal = refusal
        self._open: Counter[str] = Counter()

    def take(self, principal: Principal) -> Callable[[], None]:
        """Count one stream for this key. Return a function that releases it and is safe to call twice."""
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


@dataclass(slots=True)
class _Places:
    free: asyncio.Semaphore
    requests: int = 0


class KeyTurns:
    """Limits the concurrent requests of each key in this process.

    Further requests wait for a short time, then raise `refusal`. So short requests of many users of one key run one
    after another, and long requests are rejected.
    """

    def __init__(self, most: int, refusal: Callable[[Principal, int], RateLimited]) -> None:
        self._most = most
        self._refusal = refusal
        self._places: dict[str, _Places] = {}

    @asynccontextmanager
    async def turn(self, principal: Principal, wait_seconds: float = _TURN_SECONDS) -> AsyncGenerator[None]:
        """Wait for a place of this key and hold it."""
        places = self._places.setdefault(principal.key_id, _Places(asyncio.Semaphore(self._most)))
        if places.requests >= self._most * (1 + _WAITING_PER_PLACE):
            raise self._refusal(principal, self._most)
        places.requests += 1
        try:
            await self._acquire(places, principal, wait_seconds)
            try:
                yield
            finally:
                places.free.release()
        finally:
            places.requests -= 1
            if not places.requests:
                del self._places[principal.key_id]

    async def _acquire(self, places: _Places, principal: Principal, wait_seconds: float) -> None:
        try:
            async with asyncio.timeout(wait_seconds):
                await places.free.acquire()
        except TimeoutError:
            raise self._refusal(principal, self._most) from None
