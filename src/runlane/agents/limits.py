"""Limits of model providers, as whoever asks a model sees them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

Waiting = Callable[[str], Awaitable[None]]


class MustWait(Exception):
    """It is not yet one's turn, and waiting on would hold a place that others need."""

    def __init__(self, reason: str, retry_in_seconds: float) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_in_seconds = retry_in_seconds


class Slot(Protocol):
    """The right to make one call."""

    async def leave(self, tokens_used: int = 0) -> None:
        """Give it back."""
        ...


class Limiter(Protocol):
    """Whose turn it is, over all processes."""

    async def enter(self, credential: str, *, tokens: int, patience_seconds: float, waiting: Waiting) -> Slot:
        """Wait for a turn; `waiting` is told why, once. Raises MustWait when the patience is over."""
        ...

    async def slow_down(self, credential: str, seconds: float | None, reason: str) -> None:
        """The provider says so: everybody on this credential waits a while."""
        ...


class _Free:
    async def leave(self, tokens_used: int = 0) -> None: ...


class NoLimits:
    """Everybody may call at once."""

    async def enter(self, credential: str, *, tokens: int, patience_seconds: float, waiting: Waiting) -> Slot:
        """At once."""
        return _Free()

    async def slow_down(self, credential: str, seconds: float | None, reason: str) -> None:
        """Nobody listens."""
