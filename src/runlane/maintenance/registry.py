"""The maintenance services of every process, and their intervals."""

from __future__ import annotations

from runlane.bus import Bus
from runlane.maintenance.child_canceller import ChildCanceller
from runlane.maintenance.reaper import Reaper
from runlane.maintenance.retention import Retention
from runlane.maintenance.service import PeriodicService
from runlane.maintenance.timers import Timers
from runlane.settings import Settings
from runlane.store.sql.database import Database


def maintenance_services(settings: Settings, database: Database, bus: Bus) -> list[PeriodicService]:
    """Create one of each; the caller starts and stops them."""
    return [
        PeriodicService("reaper", settings.reaper_seconds, Reaper(settings, database, bus).run_once),
        PeriodicService("timers", settings.timer_seconds, Timers(database, bus).run_once),
        PeriodicService("children", settings.timer_seconds, ChildCanceller(database, bus).run_once),
        PeriodicService("retention", settings.retention_seconds, Retention(settings, database).run_once),
    ]
