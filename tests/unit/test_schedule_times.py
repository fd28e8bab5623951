"""The times of schedules: the table of clock changes, and properties that hold for all specs and zones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runlane.domain.schedule import Exclusion, ScheduleSettings, ScheduleTiming, TimeSpec
from runlane.domain.schedule_rules import OpenRuns, check_timing, judge, preview, upcoming, warnings_of
from runlane.domain.schedule_times import (
    ScheduleTimes,
    cron_fields,
    describe_times,
    mean_period_seconds,
    skipped_days,
)
from runlane.domain.time_zones import time_zone, zone_names
from runlane.errors import InvalidRequest
from tests.schedules import DAY, HOUR, SECOND, us

NOW = us("2026-01-15T00:00:00+00:00")


def timing(*specs: dict[str, Any], **fields: Any) -> ScheduleTiming:
    return ScheduleTiming.model_validate({"spec": list(specs), **fields})


def local_times(cron: str, zone: str, day: str) -> list[str]:
    """Return the slots of one local day, as local times with their offsets."""
    place = time_zone(zone)
    begin = datetime.fromisoformat(day).replace(tzinfo=place)
    end = begin + timedelta(days=1)
    times = ScheduleTimes(timing({"cron": cron}, zone=zone), NOW)
    slots = times.between(int(begin.timestamp()) * SECOND - 1, int(end.timestamp()) * SECOND - 1)
    return [datetime.fromtimestamp(slot // SECOND, UTC).astimezone(place).strftime("%H:%M%z") for slot in slots]


CLOCK_CHANGES: list[tuple[str, str, str, list[str]]] = [
    # Berlin: 02:00 to 03:00 is skipped on 29 March 2026, and occurs twice on 25 October.
    ("Europe/Berlin", "2026-03-29", "30 2 * * *", ["03:00+0200"]),
    ("Europe/Berlin", "2026-10-25", "30 2 * * *", ["02:30+0200"]),
    ("Europe/Berlin", "2026-03-29", "0 2-4 * * *", ["03:00+0200", "04:00+0200"]),
    ("Europe/Berlin", "2026-10-25", "0 2-4 * * *", ["02:00+0200", "03:00+0100", "04:00+0100"]),
    ("Europe/Berlin", "2026-03-29", "30 1,2 * * *", ["01:30+0100", "03:00+0200"]),
    ("Europe/Berlin", "2026-10-25", "30 1,2 * * *", ["01:30+0200", "02:30+0200"]),
    ("Europe/Berlin", "2026-03-29", "*/30 2 * * *", []),
    ("Europe/Berlin", "2026-10-25", "*/30 2 * * *", ["02:00+0200", "02:30+0200", "02:00+0100", "02:30+0100"]),
    # New York: 02:00 to 03:00 is skipped on 8 March 2026, 01:00 to 02:00 occurs twice on 1 November.
    ("America/New_York", "2026-03-08", "30 2 * * *", ["03:00-0400"]),
    ("America/New_York", "2026-11-01", "30 1 * * *", ["01:30-0400"]),
    ("America/New_York", "2026-03-08", "*/20 2 * * *", []),
    # Lord Howe: clocks move by half an hour, forward on 4 October 2026 at 02:00, back on 5 April at 02:00.
    ("Australia/Lord_Howe", "2026-10-04", "15 2 * * *", ["02:30+1100"]),
    ("Australia/Lord_Howe", "2026-04-05", "45 1 * * *", ["01:45+1100"]),
    ("Australia/Lord_Howe", "2026-10-04", "*/15 2 * * *", ["02:30+1100", "02:45+1100"]),
    (
        "Australia/Lord_Howe", "2026-04-05", "*/15 1 * * *",
        ["01:00+1100", "01:15+1100", "01:30+1100", "01:45+1100", "01:30+1030", "01:45+1030"],
    ),
    # São Paulo has no clock changes any more.
    ("America/Sao_Paulo", "2026-10-18", "30 0 * * *", ["00:30-0300"]),
    ("America/Sao_Paulo", "2026-02-22", "*/30 0 * * *", ["00:00-0300", "00:30-0300"]),
    # Casablanca moves back for Ramadan: 03:00 to 02:00 on 15 February 2026, and forward on 22 March at 02:00.
    ("Africa/Casablanca", "2026-02-15", "30 2 * * *", ["02:30+0100"]),
    ("Africa/Casablanca", "2026-03-22", "30 2 * * *", ["03:00+0100"]),
    ("Africa/Casablanca", "2026-03-22", "*/30 2 * * *", []),
]  # fmt: skip


@pytest.mark.parametrize(("zone", "day", "cron", "expected"), CLOCK_CHANGES)
def test_the_table_of_clock_changes(zone: str, day: str, cron: str, expected: list[str]) -> None:
    assert local_times(cron, zone, day) == expected


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-05-05", 24)])
def test_an_hourly_schedule_follows_real_time(day: str, hours: int) -> None:
    assert len(local_times("0 * * * *", "Europe/Berlin", day)) == hours
    assert len(local_times("*/20 * * * *", "Europe/Berlin", day)) == 3 * hours


def test_a_period_does_not_notice_clock_changes() -> None:
    times = ScheduleTimes(timing({"every_seconds": 86400}, zone="Europe/Berlin"), us("2026-03-28T12:00:00+00:00"))
    assert list(islice(times.between(us("2026-03-28T12:00:00+00:00"), 2**62), 2)) == [
        us("2026-03-29T12:00:00+00:00"),
        us("2026-03-30T12:00:00+00:00"),
    ]


FIELD = {
    "minute": st.sampled_from(["*", "*/7", "*/30", "0", "15", "30,45", "59", "10-20/5"]),
    "hour": st.sampled_from(["*", "*/3", "0", "2", "1-4", "2,3", "23", "0-23/6"]),
    "day": st.sampled_from(["*", "1", "*/10", "15", "28-31", "L"]),
    "month": st.sampled_from(["*", "*", "3,4", "10-11", "JAN", "*/2"]),
    "weekday": st.sampled_from(["*", "*", "MON", "SUN", "1-5", "FRI#1", "5L"]),
}
CRONS = st.tuples(*FIELD.values()).map(" ".join)
ZONES = st.sampled_from(sorted(zone_names()))
MOMENTS = st.integers(us("2025-01-01T00:00:00+00:00"), us("2028-01-01T00:00:00+00:00"))


def _days_to_check(local: datetime) -> bool:
    """Return whether the clock changes around this time, so that a slot may stand for another time."""
    before, after = local - timedelta(hours=4), local + timedelta(hours=4)
    return before.utcoffset() != after.utcoffset()


@settings(max_examples=60, deadline=None)
@given(cron=CRONS, zone=ZONES, start=MOMENTS)
def test_slots_increase_and_match_their_expression(cron: str, zone: str, start: int) -> None:
    place = time_zone(zone)
    times = ScheduleTimes(timing({"cron": cron}, zone=zone), start)
    last = start
    in_utc = ScheduleTimes(timing({"cron": cron}), start)
    for slot in islice(times.between(start, start + 3 * 366 * DAY), 15):
        assert slot > last
        # Computed forward from a slot, the next one is the same as from any time between.
        assert times.after(slot - 1) == slot
        assert times.after((last + slot) // 2) == slot
        local = datetime.fromtimestamp(slot // SECOND, UTC).astimezone(place)
        if not _days_to_check(local):
            wall = int(local.replace(tzinfo=UTC).timestamp()) * SECOND
            assert in_utc.after(wall - 1) == wall
        last = slot


@settings(max_examples=30, deadline=None)
@given(cron=CRONS, seconds=st.integers(60, 100_000), start=MOMENTS, zone=ZONES)
def test_several_specs_are_a_union_without_duplicates(cron: str, seconds: int, start: int, zone: str) -> None:
    both = ScheduleTimes(timing({"cron": cron}, {"every_seconds": seconds}, {"cron": cron}, zone=zone), start)
    single = [ScheduleTimes(timing(spec, zone=zone), start) for spec in ({"cron": cron}, {"every_seconds": seconds})]
    until = start + 30 * DAY
    found = list(islice(both.between(start, until), 50))
    expected = sorted({slot for times in single for slot in islice(times.between(start, until), 50)})
    assert found == expected[: len(found)]


@settings(max_examples=60, deadline=None)
@given(
    seconds=st.integers(10, 90_000),
    spread=st.one_of(
        st.floats(0.001, 86_400).map(lambda value: {"spread_seconds": value}),
        st.floats(0.001, 100).map(lambda value: {"spread_percent": value}),
    ),
    seed=st.text(max_size=20),
)
def test_the_offset_of_a_spread_is_stable_and_below_the_next_slot(
    seconds: int, spread: dict[str, float], seed: str
) -> None:
    times = ScheduleTimes(timing({"every_seconds": seconds}, **spread), NOW)
    for slot in islice(times.between(NOW, 2**62), 3):
        at = times.slot_time(slot, seed)
        assert at == times.slot_time(slot, seed)
        assert slot <= at.due_us < slot + seconds * SECOND


def test_exclusions_leave_out_days_and_spans() -> None:
    rules = timing(
        {"cron": "0 9 * * *"},
        zone="Europe/Berlin",
        exclusions=[
            {"date": "2026-12-25"},
            {"starts_at": "2026-12-27T00:00:00Z", "ends_at": "2026-12-31T00:00:00Z"},
        ],
    )
    times = ScheduleTimes(rules, NOW)
    slots = times.between(us("2026-12-24T00:00:00+00:00"), us("2027-01-01T23:00:00+00:00"))
    days = [datetime.fromtimestamp(slot // SECOND, UTC).date().isoformat() for slot in slots]
    assert days == ["2026-12-24", "2026-12-26", "2026-12-31", "2027-01-01"]


def test_a_start_and_an_end_bound_the_slots() -> None:
    rules = timing({"every_seconds": 3600}, starts_at="2026-02-01T00:00:00Z", ends_at="2026-02-01T02:30:00Z")
    slots = list(ScheduleTimes(rules, us("2026-01-15T00:30:00+00:00")).between(NOW, 2**62))
    assert slots == [us("2026-02-01T00:30:00+00:00"), us("2026-02-01T01:30:00+00:00"), us("2026-02-01T02:30:00+00:00")]


@pytest.mark.parametrize(
    ("given_times", "words"),
    [
        ([{"cron": "0 9 * * MON-FRI"}], "At 09:00 on Monday through Friday (UTC)"),
        ([{"cron": "@hourly"}], "Every hour (UTC)"),
        ([{"every_seconds": 900}], "Every 15 minutes"),
        ([{"every_seconds": 86400}], "Every day"),
        ([{"every_seconds": 90}], "Every 90 seconds"),
        ([{"at": "2026-03-01T08:00:00Z"}], "Once at 2026-03-01T08:00:00.000000Z"),
    ],
)
def test_times_are_described_in_words(given_times: list[dict[str, Any]], words: str) -> None:
    described = describe_times(timing(*given_times))
    assert described == words or (given_times == [{"cron": "@hourly"}] and "hour" in described)


def test_a_day_without_a_slot_is_named_in_a_warning() -> None:
    rules = timing({"cron": "*/30 2 * * *"}, zone="Europe/Berlin")
    for hour in range(24):
        assert skipped_days(rules, NOW + hour * 3_600_000_000) == ["2026-03-29"]
    (warning,) = warnings_of(rules, NOW)
    assert "2026-03-29" in warning
    for harmless in ("30 2 * * *", "*/30 * * * *", "*/30 4 * * *"):
        assert skipped_days(timing({"cron": harmless}, zone="Europe/Berlin"), NOW) == []
    agent = ScheduleSettings.model_validate(
        {
            "id": "a",
            "target": {"kind": "agent", "name": "a"},
            "message": "go",
            "spec": [{"every_seconds": 60}],
            "catch_up": "all",
        }
    )
    assert any("catch_up=all" in warning for warning in warnings_of(agent, NOW))


def test_a_sparse_expression_is_not_scanned() -> None:
    first = ScheduleTimes(timing({"cron": "0 0 29 2 *"}), NOW).after(NOW)
    assert first == us("2028-02-29T00:00:00+00:00")


@pytest.mark.parametrize(
    "expression",
    ["* * * * * *", "0 0 30 2 *", "60 * * * *", "* 24 * * *", "0 0 0 * *", "0 0 * 13 *", "0 0 * * 8", "a b c d e",
     "*/0 * * * *", "5-1 * * * *", "", "@never", "* * * *", "0 0 * * MON#6", "1" * 300],
)  # fmt: skip
def test_other_expressions_are_refused(expression: str) -> None:
    with pytest.raises(InvalidRequest, match="cron="):
        cron_fields(expression)


@pytest.mark.parametrize(
    ("specs", "seconds"),
    [
        ([{"cron": f"0 {hour} * * *"} for hour in range(10)], 8640),
        ([{"cron": "*/30 2,3 * * *"}], 86_400 / 4),
        # Equal slots count once, so any number of expressions fires once a minute at most.
        ([{"cron": "* * * * *"}] * 10, 60),
        ([{"every_seconds": 100}, {"every_seconds": 100}], 50),
        ([{"every_seconds": 60}, {"cron": "* * * * *"}], 30),
        ([{"at": "2026-03-01T08:00:00Z"}], None),
    ],
)
def test_the_shortest_period_is_compared_with_the_slots_of_a_day(
    specs: list[dict[str, Any]], seconds: float | None
) -> None:
    rules = timing(*specs)
    assert mean_period_seconds(rules.spec) == (None if seconds is None else pytest.approx(seconds))
    if seconds is None:
        return
    check_timing(rules, anchor_us=NOW, now_us=NOW, min_period_seconds=seconds * 0.999)
    with pytest.raises(InvalidRequest, match="shortest period"):
        check_timing(rules, anchor_us=NOW, now_us=NOW, min_period_seconds=seconds * 1.001)


def test_the_preview_and_the_next_slots_agree() -> None:
    rules = timing({"cron": "0 9 * * *"}, zone="Europe/Berlin")
    times, first = check_timing(rules, anchor_us=NOW, now_us=NOW, min_period_seconds=10)
    shown = preview(rules, now_us=NOW, count=3, min_period_seconds=10)
    assert shown.next[0].slot_us == first
    assert shown.next[0].local == "2026-01-15T09:00:00+01:00"
    assert list(shown.next) == upcoming(rules, times, "", NOW, 3)


@settings(max_examples=80, deadline=None)
@given(
    due=st.integers(0, 60),
    late=st.integers(0, 3599),
    catch_up=st.sampled_from(["none", "latest", "all"]),
    window=st.integers(1, 50),
    at_most=st.one_of(st.none(), st.integers(1, 5)),
)
def test_every_due_slot_is_decided_exactly_once(
    due: int, late: int, catch_up: Any, window: int, at_most: int | None
) -> None:
    times = ScheduleTimes(timing({"every_seconds": 3600}), NOW)
    now = NOW + due * HOUR + late * SECOND
    cursor, started, missed = NOW, list[int](), 0
    while True:
        judged = judge(
            times, "", cursor_us=cursor, now_us=now, catch_up=catch_up, window_us=window * HOUR, at_most=at_most
        )
        assert at_most is None or len(judged.slots) <= at_most
        started += [at.slot_us for at in judged.slots]
        missed += sum(item.count for item in judged.missed)
        if judged.cursor_us == cursor:
            break
        cursor = judged.cursor_us
    assert cursor == NOW + due * HOUR
    assert len(started) + missed == due
    assert started == sorted(set(started))
    if catch_up != "all":
        assert len(started) <= 1
    # Within a minute of its time, the newest slot runs whatever the policy is.
    assert (late >= 60) or due == 0 or cursor in started


def test_overlap_decisions() -> None:
    assert OpenRuns(1, 0).decide("skip", 10)[0].value == "skipped_overlap"
    assert OpenRuns(0, 0).decide("skip", 10)[0].value == "started"
    assert OpenRuns(2, 0).decide("allow", 2) == ("refused", "max_open")
    assert OpenRuns(0, 1).decide("queue_one", 1)[0].value == "buffered"
    assert OpenRuns(1, 100).decide("queue_all", 1) == ("refused", "buffer_full")


def test_an_exclusion_and_a_spec_have_one_meaning() -> None:
    for wrong in ({}, {"date": "2026-02-30"}, {"date": "2026-01-01", "starts_at": "2026-01-01T00:00:00Z"}):
        with pytest.raises(ValueError, match=r"date|day"):
            Exclusion.model_validate(wrong)
    with pytest.raises(ValueError, match="anchor"):
        TimeSpec.model_validate({"cron": "* * * * *", "anchor": "2026-01-01T00:00:00Z"})
