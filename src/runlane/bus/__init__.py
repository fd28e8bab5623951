"""Bells and signals: they make things fast, never right.

A bell says "look at this lane now" and carries nothing. Losing one costs at most a poll. A cancel signal tells the
executing worker at once what its next heartbeat would tell it anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class Listener(Protocol):
    """One worker's ear."""

    async def wait(self, timeout_seconds: float) -> bool:
        """Wait for a bell of its lanes; False when the time was up."""
        ...

    def wake(self) -> None:
        """Ring this listener alone."""
        ...

    def close(self) -> None:
        """Listen no more."""
        ...


class Bus(Protocol):
    """What the parts of the system use to wake each other."""

    def ring(self, lanes: Iterable[str]) -> None:
        """Tell whoever waits for one of these lanes to look now."""
        ...

    def listen(self, lanes: frozenset[str] | None) -> Listener:
        """An ear for these lanes; None for all of them."""
        ...

    def signal_cancel(self, run_id: str) -> None:
        """Tell whoever executes the run that it was cancelled."""
        ...

    def on_cancel(self, heard: Callable[[str], None]) -> Callable[[], None]:
        """Call `heard` with each cancelled run's id; the answer ends that."""
        ...
