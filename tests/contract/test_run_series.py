"""Figures of runs over time: each run is counted once, in the minute in which it was accepted and in which it ended."""

from __future__ import annotations

import pytest

from runlane.domain.series import BUCKETS, SeriesCounts, percentile, point_of
from runlane.errors import InvalidRequest
from runlane.maintenance.run_series import SeriesCounter
from runlane.store.queue.group_counts import count_open_by
from runlane.store.queue.run_series import HOUR, MINUTE
from runlane.store.queue.series_reading import SeriesBy, SeriesQuery, read_run_series
from runlane.store.sql.database import read_clock
from tests.harness import Store

_SECOND = 1_000_000


async def ended(store: Store, seconds_ago: int, *, status: str = "completed", tenant: str = "default") -> str:
    """Store a run that was accepted 3 s before its end and started 1 s before it."""
    run_id = await store.add()
    now = await read_clock(store.database)
    at = now - seconds_ago * _SECOND
    await store.sql(
        f"update runs set status = '{status}', tenant = '{tenant}', ended_at = {at}, claimed_at = {at - _SECOND}, "
        f"accepted_at = {at - 3 * _SECOND}, attempt = 1 where id = '{run_id}'"
    )
    return run_id


async def count(store: Store) -> None:
    counter = SeriesCounter(store.settings, store.database)
    while await counter.run_once():
        pass


async def test_ended_runs_are_counted_once_per_minute(store: Store) -> None:
    for status in ("completed", "completed", "failed", "cancelled"):
        await ended(store, 300, status=status)
    await ended(store, 300, tenant="acme")
    for again in (False, True):
        if again:
            # Counting again replaces what was counted.
            await store.sql("delete from run_series where lane = '' and target = ''")
        await count(store)
        whole = await read_run_series(store.database, SeriesQuery(None, None, MINUTE))
        (group,) = whole.groups
        (point,) = [point for point in group.points if point.completed]
        assert (point.completed, point.failed, point.cancelled) == (3, 1, 1)
        assert (point.wait_p50_seconds, point.duration_p95_seconds) == (5.0, 1.0)
    one = await read_run_series(store.database, SeriesQuery(None, None, MINUTE, tenant="acme"))
    assert sum(point.completed for point in one.groups[0].points) == 1
    nothing = await read_run_series(store.database, SeriesQuery(None, None, MINUTE, tenant="other"))
    assert nothing.groups == ()
    by_tenant = await read_run_series(store.database, SeriesQuery(None, None, HOUR, by=SeriesBy.TENANT))
    assert {
        group.name: sum(p.completed + p.failed + p.cancelled for p in group.points) for group in by_tenant.groups
    } == {
        "default": 4,
        "acme": 1,
    }


async def test_hours_are_added_up_and_continue_with_minutes(store: Store) -> None:
    await ended(store, 3 * HOUR)
    await ended(store, 200)
    await count(store)
    day = await read_run_series(store.database, SeriesQuery(None, None, HOUR, by=SeriesBy.LANE))
    assert sum(point.completed for point in day.groups[0].points) == 2
    assert day.counted_until_us is not None
    assert len(await store.sql("select 1 from run_series where seconds = 3600 and lane = '' and tenant = ''")) >= 23


async def started(store: Store, seconds_ago: int, status: str, *attempts: str) -> None:
    """Store a run that has started this long ago, with these ended attempts of a second each."""
    run_id = await store.add()
    at = await read_clock(store.database) - seconds_ago * _SECOND
    latest = at + len(attempts) * 100 * _SECOND if status == "running" else at
    await store.sql(
        f"update runs set status = '{status}', claimed_at = {latest}, accepted_at = {at - 5 * HOUR * _SECOND}, "
        f"attempt = {len(attempts) + (status == 'running')} where id = '{run_id}'"
    )
    for number, outcome in enumerate(attempts, 1):
        begun = at + (number - 1) * 100 * _SECOND
        await store.sql(
            "insert into run_attempts (run_id, attempt, started_at, ended_at, outcome) "
            f"values ('{run_id}', {number}, {begun}, {begun + _SECOND}, '{outcome}')"
        )


async def test_a_run_is_counted_in_the_minute_of_its_first_start(store: Store) -> None:
    # A process was away for ten hours, so that it has minutes to skip.
    await count(store)
    await store.sql("update run_series set bucket = bucket - 36000")
    await started(store, 5 * HOUR, "running")
    await started(store, 4 * HOUR, "running", "lost")
    await started(store, 3 * HOUR, "paused", "paused")
    await started(store, 2 * HOUR, "queued", "retry_later", "retry_later")
    # It ends in a later minute.
    await ended(store, 1 * HOUR)
    await store.sql(f"update runs set claimed_at = claimed_at - {300 * _SECOND} where status = 'completed'")
    await store.add()
    await count(store)
    now = await read_clock(store.database)
    whole = await read_run_series(store.database, SeriesQuery(now - 10 * HOUR * _SECOND, now, MINUTE, by=SeriesBy.LANE))
    starts = {(now - point.at_us) // _SECOND // MINUTE: point.started for point in whole.groups[0].points}
    assert [(ago // 60, count) for ago, count in sorted(starts.items()) if count] == [
        (1, 1), (2, 1), (3, 1), (4, 1), (5, 1)
    ]  # fmt: skip
    by_hour = await read_run_series(store.database, SeriesQuery(None, None, HOUR))
    assert sum(point.started for point in by_hour.groups[0].points) == 5


async def test_minutes_without_a_change_are_not_counted_one_by_one(store: Store) -> None:
    counter = SeriesCounter(store.settings, store.database)
    assert not await counter.run_once()
    assert len(await store.sql("select 1 from run_series where seconds = 60")) == 1
    # After a stop of ten hours, one run ended five hours ago and one just before.
    await store.sql("update run_series set bucket = bucket - 36000 where seconds = 60")
    for seconds_ago in (5 * HOUR, 200):
        await ended(store, seconds_ago)
    await count(store)
    rows = await store.sql("select completed from run_series where seconds = 60 and tenant = '' and lane <> ''")
    assert sum(row["completed"] for row in rows) == 2
    assert len(await store.sql("select 1 from run_series where seconds = 60 and lane = ''")) < 100


async def test_a_time_without_bounds_is_refused(store: Store) -> None:
    now = await read_clock(store.database)
    for wanted in (
        SeriesQuery(0, now, MINUTE),
        SeriesQuery(now, now - 1, MINUTE),
        SeriesQuery(now - 49 * HOUR * _SECOND, now - 48 * HOUR * _SECOND, MINUTE),
    ):
        with pytest.raises(InvalidRequest):
            await read_run_series(store.database, wanted)


async def test_open_runs_are_counted_by_lane_and_target(store: Store) -> None:
    for _ in range(3):
        await store.add()
    await ended(store, 10)
    (group,) = await count_open_by(store.database, "lane", "default")
    assert [(count.status, count.count, count.exact) for count in group.counts] == [("queued", 3, True)]
    assert await count_open_by(store.database, "target", "acme") == ()


def test_percentiles_are_bounds_of_buckets() -> None:
    assert percentile([0] * BUCKETS, 0.5) is None
    assert percentile([5, 0, 0, 5, *[0] * (BUCKETS - 4)], 0.5) == 0.1
    assert percentile([5, 0, 0, 5, *[0] * (BUCKETS - 4)], 0.95) == 5.0
    assert percentile([*[0] * (BUCKETS - 1), 3], 0.5) is None
    assert point_of(0, SeriesCounts(accepted=2)).accepted == 2
