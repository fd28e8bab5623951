"""The maintenance services that a survey of the database can find work for."""

from enum import StrEnum
from typing import Final


class MaintenanceService(StrEnum):
    """A service that runs when it has work."""

    REAPER = "reaper"
    TIMERS = "timers"
    CHILDREN = "children"
    BULK = "bulk"
    SCHEDULES = "schedules"
    DEPENDENTS = "dependents"
    ADMISSION = "admission"
    TRIGGERS = "triggers"
    WEBHOOKS = "webhooks"


MAINTENANCE_SERVICES: Final = frozenset(service.value for service in MaintenanceService)
