"""The duties that every process does, and how often."""

from __future__ import annotations

from runlane.bus import Bus
from runlane.duties.children import Children
from runlane.duties.duty import Duty
from runlane.duties.reaper import Reaper
from runlane.duties.retention import Retention
from runlane.duties.timers import Timers
from runlane.settings import Settings
from runlane.store.database import Database


def all_duties(settings: Settings, database: Database, bus: Bus) -> list[Duty]:
    """One of each; the caller starts and stops them."""
    return [
        Duty("reaper", settings.reaper_seconds, Reaper(settings, database, bus).round),
        Duty("timers", settings.timer_seconds, Timers(database, bus).round),
        Duty("children", settings.timer_seconds, Children(database, bus).round),
        Duty("retention", settings.retention_seconds, Retention(settings, database).round),
    ]
