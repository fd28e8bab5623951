"""Checks of schedules: their times must be valid."""

from __future__ import annotations

import time

from runlane.definitions.problem import Location, Problems
from runlane.domain.schedule import ScheduleSettings
from runlane.domain.schedule_rules import check_timing, warnings_of
from runlane.errors import InvalidRequest


def check_schedule(definition: ScheduleSettings, location: Location, problems: Problems) -> None:
    """Report invalid times. The limits of the tenant are checked when the schedule is stored."""
    now_us = time.time_ns() // 1000
    try:
        check_timing(definition, anchor_us=now_us, now_us=now_us, min_period_seconds=0)
    except InvalidRequest as error:
        problems.error(location.at(field="zone" if str(error).startswith("zone") else "spec"), str(error))
        return
    for warning in warnings_of(definition, now_us):
        problems.warn(location.at(field="spec"), warning)
