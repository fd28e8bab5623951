"""The times of a schedule: slots computed forward from a slot, never by scanning minutes and never from "now".

A cron expression with a fixed minute and fixed hours fires once on days when clocks change: a time that is skipped
becomes the end of the gap, a time that occurs twice is the first one. With `*` or `*/n` in the minute or the hour it
follows real time. `every_seconds` counts absolute time, so clock changes do not matter to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cache
from hashlib import sha256
from typing import Final

from cronsim import CronSim, CronSimError

from runlane.domain.firing import SlotTime
from runlane.domain.schedule import MAX_SPREAD_SECONDS, Exclusion, ScheduleTiming, TimeSpec
from runlane.domain.time_zones import time_zone
from runlane.domain.timestamps import format_timestamp
from runlane.errors import InvalidRequest

_SECOND_US: Final = 1_000_000
_YEAR_US: Final = 366 * 86_400 * _SECOND_US
HORIZON_US: Final = 10 * _YEAR_US
_DAY_SECONDS: Final = 86_400.0
# All slots of cron expressions are full minutes, and equal slots count once.
_MAX_CRON_RATE: Final = 1 / 60.0
# Computing a slot takes tens of microseconds for each rule, and several times as long with a spread.
_MANY_SLOTS: Final = 1000.0
_SPREAD_FACTOR: Final = 5
_SHORT_SECONDS: Final = 3600.0
MAX_CRON: Final = 200
_FIELDS: Final = "minute, hour, day of month, month, day of week"
_NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_UNITS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


class ScheduleTimes:
    """The slots of a schedule. They increase strictly and depend only on its rules."""

    def __init__(self, rules: ScheduleTiming, anchor_us: int) -> None:
        """`anchor_us` is the anchor of periods without their own: the creation of the schedule."""
        self._rules = rules
        self._zone = time_zone(rules.zone)
        self._windows = [_window(exclusion, self._zone) for exclusion in rules.exclusions]
        self._sources = [_source(spec, self._zone, anchor_us) for spec in rules.spec]

    def after(self, at_us: int, horizon_us: int = HORIZON_US) -> int | None:
        """Return the first slot after a time, or None if there is none within the horizon."""
        rules = self._rules
        if rules.starts_at is not None:
            at_us = max(at_us, rules.starts_at - 1)
        limit_us = at_us + horizon_us
        if rules.ends_at is not None:
            limit_us = min(limit_us, rules.ends_at)
        while True:
            found = [slot for source in self._sources if (slot := source.after(at_us)) is not None]
            if not found or min(found) > limit_us:
                return None
            slot = min(found)
            ends = [end for start, end in self._windows if start <= slot < end]
            if not ends:
                return slot
            # The whole window is left out, so the search continues at its end.
            at_us = max(ends) - 1

    def between(self, after_us: int, until_us: int) -> Iterator[int]:
        """Return the slots after the first time, up to and including the second one."""
        slot = self.after(after_us)
        while slot is not None and slot <= until_us:
            yield slot
            slot = self.after(slot)

    def are_many(self, after_us: int, until_us: int) -> bool:
        """Return whether a span may have so many slots that computing them would hold up an event loop."""
        seconds = (until_us - after_us) / _SECOND_US
        if seconds <= _SHORT_SECONDS:
            return False
        rules = self._rules
        spreads = rules.spread_seconds is not None or rules.spread_percent is not None
        period = mean_period_seconds(rules.spec)
        slots = 0.0 if period is None else seconds / period
        return slots * len(rules.spec) * (_SPREAD_FACTOR if spreads else 1) > _MANY_SLOTS

    def slot_time(self, slot_us: int, seed: str) -> SlotTime:
        """Return a slot with its due time: later by the schedule's own offset, and before the following slot."""
        return SlotTime(slot_us, slot_us + self._offset_us(slot_us, seed))

    def _offset_us(self, slot_us: int, seed: str) -> int:
        seconds, percent = self._rules.spread_seconds, self._rules.spread_percent
        if seconds is None and percent is None:
            return 0
        following = self.after(slot_us)
        gap_us = MAX_SPREAD_SECONDS * _SECOND_US if following is None else float(following - slot_us)
        width_us = gap_us * percent / 100 if percent is not None else min(gap_us, (seconds or 0.0) * _SECOND_US)
        share = int.from_bytes(sha256(seed.encode()).digest()[:6], "big") / 2**48
        return int(share * min(width_us, MAX_SPREAD_SECONDS * _SECOND_US))


class _Cron:
    def __init__(self, expression: str, zone: tzinfo) -> None:
        self._expression = expression
        self._zone = zone
        minute, hour, *_ = expression.split()
        self._follows_clock = not (minute.startswith("*") or hour.startswith("*"))

    def after(self, at_us: int) -> int | None:
        start = datetime.fromtimestamp(at_us // _SECOND_US, UTC).astimezone(self._zone)
        times = CronSim(self._expression, start)
        for moment in times:
            real = moment.astimezone(UTC)
            slot_us = int(real.timestamp()) * _SECOND_US
            # If the search begins at the second of two equal local times, it returns the first one.
            if slot_us <= at_us:
                continue
            local = real.astimezone(self._zone)
            # For a day that begins with skipped time, the search returns a midnight that does not exist.
            if self._follows_clock or (local.hour in times.hours and local.minute in times.minutes):
                return slot_us
        return None


class _Every:
    def __init__(self, period_us: int, anchor_us: int) -> None:
        self._period_us = period_us
        self._anchor_us = anchor_us

    def after(self, at_us: int) -> int:
        return self._anchor_us + ((at_us - self._anchor_us) // self._period_us + 1) * self._period_us


class _At:
    def __init__(self, at_us: int) -> None:
        self._at_us = at_us

    def after(self, at_us: int) -> int | None:
        return self._at_us if self._at_us > at_us else None


def _source(spec: TimeSpec, zone: tzinfo, anchor_us: int) -> _Cron | _Every | _At:
    if spec.cron is not None:
        return _Cron(cron_fields(spec.cron), zone)
    if spec.every_seconds is not None:
        return _Every(round(spec.every_seconds * _SECOND_US), anchor_us if spec.anchor is None else spec.anchor)
    assert spec.at is not None  # noqa: S101 - a spec has one of the three
    return _At(spec.at)


def _window(exclusion: Exclusion, zone: tzinfo) -> tuple[int, int]:
    if exclusion.date is None:
        assert exclusion.starts_at is not None and exclusion.ends_at is not None  # noqa: S101,PT018 - it has a date or both
        return exclusion.starts_at, exclusion.ends_at
    day = date.fromisoformat(exclusion.date)
    begin, end = (datetime(on.year, on.month, on.day, tzinfo=zone) for on in (day, day + timedelta(days=1)))
    return int(begin.timestamp()) * _SECOND_US, int(end.timestamp()) * _SECOND_US


@cache
def cron_fields(expression: str) -> str:
    """Return a cron expression of five fields in upper case. InvalidRequest for any other."""
    text = " ".join(_NICKNAMES.get(expression.strip().lower(), expression).upper().split())
    fields = text.split()
    shown = repr(expression[:MAX_CRON])
    if len(fields) == 6:
        raise InvalidRequest(
            f"cron={shown} has six fields. A cron expression has exactly five ({_FIELDS}); remove the seconds, or use "
            "every_seconds for periods below a minute."
        )
    if len(fields) != 5 or len(text) > MAX_CRON:
        raise InvalidRequest(
            f"cron={shown} has {len(fields)} fields. Write exactly five: {_FIELDS}. Example: 0 9 * * MON-FRI"
        )
    try:
        CronSim(text, datetime(2026, 1, 1, tzinfo=UTC))
    except (CronSimError, AssertionError, ValueError) as error:
        problem = str(error).removeprefix("Bad ") or "expression"
        raise InvalidRequest(
            f"cron={shown} has an impossible {problem}. The five fields are {_FIELDS}; the day must exist in one "
            "of the months."
        ) from None
    return text


def describe_times(rules: ScheduleTiming) -> str:
    """Return the rules in plain words."""
    parts = [_describe_spec(spec) for spec in rules.spec]
    text = "; ".join(parts)
    if any(spec.cron is not None for spec in rules.spec):
        text += f" ({rules.zone})"
    if rules.exclusions:
        text += f", except {len(rules.exclusions)} excluded {'time' if len(rules.exclusions) == 1 else 'times'}"
    return text


def _describe_spec(spec: TimeSpec) -> str:
    if spec.cron is not None:
        return CronSim(cron_fields(spec.cron), datetime(2026, 1, 1, tzinfo=UTC)).explain()
    if spec.every_seconds is not None:
        seconds = spec.every_seconds
        for size, word in _UNITS:
            if seconds >= size and seconds % size == 0:
                count = int(seconds // size)
                return f"Every {word}" if count == 1 else f"Every {count} {word}s"
        return f"Every {seconds:g} seconds"
    return f"Once at {format_timestamp(spec.at or 0)}"


def mean_period_seconds(specs: Sequence[TimeSpec]) -> float | None:
    """Return the mean period of all specs together, on a day on which all fire; None if they fire once each."""
    crons = sum(_slots_per_day(spec.cron) for spec in specs if spec.cron is not None) / _DAY_SECONDS
    rate = min(_MAX_CRON_RATE, crons) + sum(1 / spec.every_seconds for spec in specs if spec.every_seconds is not None)
    return 1 / rate if rate else None


def _slots_per_day(cron: str) -> int:
    times = CronSim(cron_fields(cron), datetime(2026, 1, 1, tzinfo=UTC))
    return len(times.minutes) * len(times.hours)


def skipped_days(rules: ScheduleTiming, from_us: int) -> list[str]:
    """Return the days of the next year on which a cron expression does not fire because clocks skip its hours."""
    zone = time_zone(rules.zone)
    days: list[str] = []
    for spec in rules.spec:
        if spec.cron is None:
            continue
        fields = cron_fields(spec.cron)
        for day in _days_with_gap(zone, from_us):
            begin = datetime(day.year, day.month, day.day, tzinfo=zone)
            length = timedelta(days=1, seconds=-1)
            expected = _fires_between(fields, begin.replace(tzinfo=UTC), begin.replace(tzinfo=UTC) + length)
            if expected and not _fires_between(fields, begin, begin + length):
                days.append(day.isoformat())
    return sorted(set(days))


def _days_with_gap(zone: tzinfo, from_us: int) -> Iterator[date]:
    # Dates of the zone: in steps of 24 hours, the day after an hour that is skipped near midnight would be left out.
    first = datetime.fromtimestamp(from_us / _SECOND_US, UTC).astimezone(zone).date()
    for number in range(366):
        day = first + timedelta(days=number)
        before = day - timedelta(days=1)
        later, earlier = (datetime.combine(one, time(12), zone).utcoffset() for one in (day, before))
        if later is not None and earlier is not None and later > earlier:
            yield day
            yield before


def _fires_between(fields: str, begin: datetime, end: datetime) -> bool:
    source = _Cron(fields, begin.tzinfo or UTC)
    slot = source.after(int(begin.timestamp()) * _SECOND_US - 1)
    return slot is not None and slot <= int(end.timestamp()) * _SECOND_US


def spread_seed(schedule_id: str, generation: int) -> str:
    """Return the value from which the offset of a schedule is computed."""
    return f"{schedule_id}\x1f{generation}"
