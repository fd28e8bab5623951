"""The maintenance services of every process, and their intervals."""

from __future__ import annotations

from runlane.bus import Bus
from runlane.domain.maintenance import MaintenanceService
from runlane.maintenance.child_canceller import ChildCanceller
from runlane.maintenance.reaper import Reaper
from runlane.maintenance.retention import Retention
from runlane.maintenance.service import PeriodicService
from runlane.maintenance.survey import Survey
from runlane.maintenance.timers import Timers
from runlane.settings import Settings
from runlane.store.sql.database import Database

# How often a service runs that the survey has not found work for. The reaper looks for orphans then.
_UNASKED_SECONDS = 60.0


def maintenance_services(settings: Settings, database: Database, bus: Bus) -> list[PeriodicService]:
    """Create one of each; the caller starts and stops them."""
    jobs = {
        MaintenanceService.REAPER: Reaper(settings, database, bus).run_once,
        MaintenanceService.TIMERS: Timers(database, bus).run_once,
        MaintenanceService.CHILDREN: ChildCanceller(database, bus).run_once,
    }
    woken = {service: PeriodicService(service, _UNASKED_SECONDS, job) for service, job in jobs.items()}
    return [
        *woken.values(),
        Survey(settings, database, bus, woken),
        PeriodicService("retention", settings.retention_seconds, Retention(settings, database).run_once),
    ]
