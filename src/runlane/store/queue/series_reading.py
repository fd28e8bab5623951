"""Series of figures for readers: buckets of any length, by lane, target or tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from runlane.domain.series import RunSeries, SeriesCounts, SeriesGroup, point_of
from runlane.errors import InvalidRequest
from runlane.store.queue.run_series import HOUR, KEPT_MINUTES_SECONDS, MAX_ROWS, MINUTE, SeriesRow, read_series_rows
from runlane.store.sql.database import Database, read_clock

MAX_POINTS: Final = 1500
MAX_GROUPS: Final = 50
_SECOND_US: Final = 1_000_000


class SeriesBy(StrEnum):
    """The property by which the points of a series are grouped."""

    NONE = "none"
    LANE = "lane"
    TARGET = "target"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class SeriesQuery:
    """Selects the runs and the time of a series, and the length of its buckets."""

    from_us: int | None
    to_us: int | None
    step_seconds: int
    by: SeriesBy = SeriesBy.NONE
    tenant: str | None = None
    lane: str | None = None
    target: str | None = None


async def read_run_series(database: Database, wanted: SeriesQuery) -> RunSeries:
    """Return the figures of runs over time. Without a time, the last hour of minutes, or the last day."""
    now = await read_clock(database) // _SECOND_US
    step = wanted.step_seconds
    to = now if wanted.to_us is None else min(now, wanted.to_us // _SECOND_US)
    start = to - (HOUR if step < HOUR else 24 * HOUR) if wanted.from_us is None else wanted.from_us // _SECOND_US
    empty = to <= start
    start = start // step * step
    if empty or (to - start) / step > MAX_POINTS:
        raise InvalidRequest(
            f"A series of {max(0, to - start)} s in steps of {step} s is not valid. Give a time that has 1 to "
            f"{MAX_POINTS} steps."
        )
    seconds = MINUTE if step < HOUR else HOUR
    if seconds == MINUTE and start < now - KEPT_MINUTES_SECONDS:
        raise InvalidRequest("Minutes are kept for 48 hours. Use a step of at least 3600 seconds for older runs.")
    by_tenant = wanted.by is SeriesBy.TENANT
    given = {"tenant": wanted.tenant, "lane": wanted.lane, "target": wanted.target}
    rows, counted = await read_series_rows(database, seconds, start, to, by_tenant=by_tenant, **given)
    if seconds == HOUR:
        # The current hour is not counted yet, so its minutes are added.
        since = max(start, counted or start)
        more, counted = await read_series_rows(database, MINUTE, since, to, by_tenant=by_tenant, **given)
        rows += more
    groups = _grouped(rows, wanted.by, step)
    return RunSeries(
        step,
        start * _SECOND_US,
        to * _SECOND_US,
        None if counted is None else min(counted, to) * _SECOND_US,
        tuple(groups[:MAX_GROUPS]),
        complete=len(groups) <= MAX_GROUPS and len(rows) < MAX_ROWS,
    )


def _grouped(rows: Sequence[SeriesRow], by: SeriesBy, step: int) -> list[SeriesGroup]:
    """Return the groups with the most ended runs first."""
    found: dict[str, dict[int, SeriesCounts]] = {}
    for row in rows:
        name = {SeriesBy.LANE: row.lane, SeriesBy.TARGET: row.target, SeriesBy.TENANT: row.tenant}.get(by, "")
        found.setdefault(name, {}).setdefault(row.bucket // step * step, SeriesCounts()).add(row.counts)
    groups = [
        SeriesGroup(name, tuple(point_of(at * _SECOND_US, counts) for at, counts in sorted(buckets.items())))
        for name, buckets in found.items()
    ]
    return sorted(
        groups, key=lambda group: (-sum(p.completed + p.failed + p.cancelled for p in group.points), group.name)
    )
