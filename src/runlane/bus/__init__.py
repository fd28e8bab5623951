"""The bus: wake-ups, live events and cancel signals between processes, by Redis, Postgres or in memory.

A bell wakes a worker for a lane and has no content. A notice is published when a run has new events, and may contain
them. A delta is live text that is not stored. A cancel signal reaches the executing worker before its next heartbeat
would. A reader that has just begun to follow a run is announced to the worker that executes it, which then repeats the
live text that this reader has missed. A lost message costs time only: a poll finds the run, a reader reads the
database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from runlane.domain.events import Delta, Notice
from runlane.domain.hints import Hint, Topic
from runlane.domain.maintenance import MaintenanceService

Receive = Callable[[Notice | Delta], None]


class ReceiveDue(Protocol):
    """Receives the maintenance services that have work. With `surveyed`, a survey found that no other one has work."""

    def __call__(self, due: Collection[MaintenanceService], *, surveyed: bool) -> None: ...


class Listener(Protocol):
    """Receives the bells of one worker."""

    async def wait(self, lanes: Collection[str], timeout_seconds: float) -> bool:
        """Wait for a bell of one of these lanes; return False on timeout. One bell wakes one waiting worker."""
        ...

    def wake(self) -> None:
        """Wake only this listener."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Bus(Protocol):
    """Messages between processes and components. No method waits or raises."""

    @property
    def kind(self) -> str:
        """The connection between processes: `redis`, `postgres`, or `none`."""
        ...

    @property
    def reaches_others(self) -> bool:
        """Whether messages of other processes currently arrive."""
        ...

    @property
    def confirms_followers(self) -> bool:
        """Whether a new follower of a run gets a notice without events when messages of other processes reach it."""
        ...

    # The processes that share the maintenance, as a survey of this process has counted them.
    live_processes: int
    # Called with each published notice, and with each hint, while a server has an open page.
    on_publish: Callable[[Notice], None] | None
    on_hint: Callable[[Hint], None] | None

    def hint(self, topic: Topic, tenant: str | None = None, *ids: str) -> None:
        """Report a change to open pages. Without ids, it concerns the whole topic; without a tenant, every tenant."""
        ...

    async def start(self) -> None:
        """Start. An unavailable server is retried in the background."""
        ...

    async def stop(self) -> None:
        """Stop. Safe to call twice."""
        ...

    def ring(self, lanes: Iterable[str]) -> None:
        """Wake one waiting worker for each of these lanes."""
        ...

    def listen(self, lanes: frozenset[str] | None) -> Listener:
        """Return a listener for these lanes; None for all lanes."""
        ...

    def signal_cancel(self, run_id: str) -> None:
        """Signal the worker that executes the run that it was cancelled."""
        ...

    def on_cancel(self, receive: Callable[[str], None]) -> Callable[[], None]:
        """Call `receive` with the id of each cancelled run; return a function that unsubscribes."""
        ...

    def report_survey(self, due: Collection[MaintenanceService], processes: int | None = None) -> None:
        """Report to the maintenance of this process which services have work, by a survey of the database.

        `processes` is the number of live processes, if the survey has counted them.
        """
        ...

    def report_work(self, due: Collection[MaintenanceService]) -> None:
        """Wake maintenance services that have work, of this process at once and of others soon, without a survey."""
        ...

    def report_timer(self, after_seconds: float, service: MaintenanceService = MaintenanceService.TIMERS) -> None:
        """Report to the maintenance of this process that the service has work after this time."""
        ...

    def on_maintenance(self, receive: ReceiveDue) -> Callable[[], None]:
        """Call `receive` with each report, at the time that it names; return a function that unsubscribes."""
        ...

    def publish(self, notices: Iterable[Notice]) -> None:
        """Notify the readers of runs that events were committed."""
        ...

    def send_delta(self, delta: Delta) -> None:
        """Publish a delta to the readers of a run."""
        ...

    def announce_reader(self, run_id: str) -> None:
        """Notify the worker that executes the run that a reader has joined, or has missed live text."""
        ...

    def on_reader(self, receive: Callable[[str], None]) -> Callable[[], None]:
        """Call `receive` with the run's id for each announced reader; return a function that unsubscribes."""
        ...

    def follow(self, run_id: str, receive: Receive) -> Callable[[], None]:
        """Call `receive` with each message about a run; return a function that unsubscribes."""
        ...
