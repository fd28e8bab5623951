"""The duties that every process does, and how often."""

from __future__ import annotations

from runlane.bus import Bus
from runlane.maintenance.child_canceller import ChildCanceller
from runlane.maintenance.reaper import Reaper
from runlane.maintenance.retention import Retention
from runlane.maintenance.service import PeriodicService
from runlane.maintenance.timers import Timers
from runlane.settings import Settings
from runlane.store.sql.database import Database


def all_duties(settings: Settings, database: Database, bus: Bus) -> list[PeriodicService]:
    """One of each; the caller starts and stops them."""
    return [
        PeriodicService("reaper", settings.reaper_seconds, Reaper(settings, database, bus).round),
        PeriodicService("timers", settings.timer_seconds, Timers(database, bus).round),
        PeriodicService("children", settings.timer_seconds, ChildCanceller(database, bus).round),
        PeriodicService("retention", settings.retention_seconds, Retention(settings, database).round),
    ]
