"""The maintenance survey: find the services that have work with one query, and wake them.

The heartbeat of a worker makes the survey in the transaction that renews its lease, so that an idle worker needs no
further transactions. Many workers take turns, and each reports the turns of the others as well. A process without a
worker, or whose heartbeats fail, makes its own survey.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from runlane.bus import Bus
from runlane.domain.maintenance import MaintenanceService
from runlane.maintenance.service import PeriodicService
from runlane.settings import Settings
from runlane.store.maintenance import read_survey
from runlane.store.sql.database import Database

# How often a process searches for work that others have left, while the processes can wake each other.
RELAXED_SECONDS = 4.0


class Survey(PeriodicService):
    """Wakes the services that have work."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        bus: Bus,
        services: Mapping[MaintenanceService, PeriodicService],
    ) -> None:
        super().__init__("survey", self._pause_seconds, self._run_once)
        self._settings = settings
        self._database = database
        self._bus = bus
        self._services = services
        self._surveyed_at = float("-inf")
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._unsubscribe()
        self._unsubscribe = self._bus.on_maintenance(self._receive)
        super().start()

    async def stop(self) -> None:
        self._unsubscribe()
        await super().stop()

    def _pause_seconds(self) -> float:
        polling_seconds = min(self._settings.timer_seconds, self._settings.reaper_seconds)
        return max(RELAXED_SECONDS, polling_seconds) if self._bus.reaches_others else polling_seconds

    async def _run_once(self) -> bool:
        if time.monotonic() - self._surveyed_at >= 0.5 * self._pause_seconds():
            survey = await read_survey(self._database, self._settings.silence_seconds)
            self._bus.live_processes = survey.processes
            self._receive(survey.due, surveyed=True)
        return False

    def _receive(self, due: Collection[MaintenanceService], *, surveyed: bool) -> None:
        if surveyed:
            self._surveyed_at = time.monotonic()
        for service in due:
            # A process without a worker has no trigger evaluator, and a process may be configured not to deliver
            # webhooks.
            if service in self._services:
                self._services[service].wake()
