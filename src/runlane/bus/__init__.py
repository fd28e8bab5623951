"""Bells, live events and signals: they make things fast, never right.

A bell says "look at this lane now" and carries nothing. A notice says that a run has events up to a number, and may
bring the newest ones along. A delta is live only. A cancel signal tells the executing worker at once what its next
heartbeat would tell it anyway. A reader that has just begun to follow a run is announced to the worker that executes
it, which then repeats the live text that this reader has missed. Losing any of them costs time: a poll finds the run, a
reader reads the database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from runlane.domain.events import Delta, Notice

Heard = Callable[[Notice | Delta], None]


class Listener(Protocol):
    """One worker's ear."""

    async def wait(self, lanes: Collection[str], timeout_seconds: float) -> bool:
        """Wait for a bell of one of these lanes; False when the time was up. One bell wakes one waiting worker."""
        ...

    def wake(self) -> None:
        """Ring this listener alone."""
        ...

    def close(self) -> None:
        """Listen no more."""
        ...


class Bus(Protocol):
    """What the parts of the system tell each other. Nothing here waits, and nothing here fails its caller."""

    @property
    def reaches_others(self) -> bool:
        """Whether what other processes say arrives here at this moment."""
        ...

    async def start(self) -> None:
        """Begin. A server that is away is waited for in the background."""
        ...

    async def stop(self) -> None:
        """End. Safe to call twice."""
        ...

    def ring(self, lanes: Iterable[str]) -> None:
        """Call one waiting worker for each of these lanes."""
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

    def publish(self, notices: Iterable[Notice]) -> None:
        """Tell readers of runs that events were committed."""
        ...

    def send_delta(self, delta: Delta) -> None:
        """Tell readers of a run something that is not stored."""
        ...

    def announce_reader(self, run_id: str) -> None:
        """Tell the worker that executes the run that a reader has joined, or has missed live text."""
        ...

    def on_reader(self, heard: Callable[[str], None]) -> Callable[[], None]:
        """Call `heard` with the run's id for each announced reader; the returned function ends that."""
        ...

    def follow(self, run_id: str, heard: Heard) -> Callable[[], None]:
        """Call `heard` with what is told about a run; the answer ends that."""
        ...
