"""The maintenance services of every process, and their intervals."""

from __future__ import annotations

from collections.abc import Mapping

from runlane.domain.maintenance import MaintenanceService
from runlane.maintenance.admission import AdmissionService
from runlane.maintenance.child_canceller import ChildCanceller
from runlane.maintenance.dependents import DependentSettler
from runlane.maintenance.reaper import Reaper
from runlane.maintenance.retention import Retention
from runlane.maintenance.run_series import EVERY_SECONDS, SeriesCounter
from runlane.maintenance.schedules import MAX_SECONDS, Planner, ScheduleService
from runlane.maintenance.service import PeriodicService
from runlane.maintenance.survey import Survey
from runlane.maintenance.timers import Timers
from runlane.maintenance.webhook_delivery import WebhookService
from runlane.resources import Resources

# How often a service runs although the survey has found no work for it. The reaper then searches for orphans.
_UNASKED_SECONDS = 60.0


def maintenance_services(
    connection: Resources, planner: Planner, more: Mapping[MaintenanceService, PeriodicService]
) -> list[PeriodicService]:
    """Create one of each; the caller starts and stops them. `more` are the services of other layers."""
    settings, database, bus = connection.settings, connection.database, connection.bus
    jobs = {
        MaintenanceService.REAPER: Reaper(settings, database, bus).run_once,
        MaintenanceService.TIMERS: Timers(database, bus).run_once,
        MaintenanceService.CHILDREN: ChildCanceller(database, bus).run_once,
        MaintenanceService.SCHEDULES: ScheduleService(
            database, bus, planner, min(MAX_SECONDS, settings.database_timeout_seconds / 2)
        ).run_once,
        MaintenanceService.DEPENDENTS: DependentSettler(database, bus).run_once,
        MaintenanceService.ADMISSION: AdmissionService(database, connection.admitter).run_once,
    }
    woken = {service: PeriodicService(service, _UNASKED_SECONDS, job) for service, job in jobs.items()}
    woken |= more
    if settings.webhooks:
        woken[MaintenanceService.WEBHOOKS] = WebhookService(settings, database, connection.bus)
    shared = [
        *woken.values(),
        PeriodicService("run_series", EVERY_SECONDS, SeriesCounter(settings, database).run_once),
        PeriodicService("retention", settings.retention_seconds, Retention(settings, database).run_once),
    ]
    for service in shared:
        service.share(lambda: bus.live_processes)
    return [*shared, Survey(settings, database, bus, woken)]
