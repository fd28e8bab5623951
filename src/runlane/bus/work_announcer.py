"""Announce to other processes that maintenance services have work, at most a few times per second.

Every process that has the service looks for the work, so a busy sender must not announce each piece of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from runlane.domain.maintenance import MaintenanceService

PAUSE_SECONDS: Final = 0.5


class WorkAnnouncer:
    """Sends the first report at once, and the reports of the following pause as one message."""

    def __init__(self, send: Callable[[MaintenanceService], None]) -> None:
        self._send = send
        self._pauses: dict[MaintenanceService, asyncio.TimerHandle] = {}
        self._again: set[MaintenanceService] = set()

    def announce(self, services: Collection[MaintenanceService]) -> None:
        """Announce work of these services."""
        for service in services:
            if service in self._pauses:
                self._again.add(service)
                continue
            self._send(service)
            loop = asyncio.get_running_loop()
            self._pauses[service] = loop.call_later(PAUSE_SECONDS, self._end_pause, service)

    def stop(self) -> None:
        """Announce the reported work that waits for the end of a pause, and stop."""
        while self._pauses:
            self._pauses.popitem()[1].cancel()
        while self._again:
            self._send(self._again.pop())

    def _end_pause(self, service: MaintenanceService) -> None:
        self._pauses.pop(service, None)
        if service in self._again:
            self._again.discard(service)
            self.announce((service,))
