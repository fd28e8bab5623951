"""The slowest statements: one entry for each name, of the last hour."""

from __future__ import annotations

from runlane.observability.slow_statements import KEPT_SECONDS, SlowStatement, SlowStatements


def test_the_slowest_execution_of_each_statement_is_kept_with_the_number_of_slow_ones() -> None:
    now = 1000.0
    found = SlowStatements(lambda: now)
    for seconds in (0.2, 0.9, 0.3):
        found.add("list_runs", seconds)
        now += 1
    found.add("list_lanes", 2.0)
    assert found.slowest() == [
        SlowStatement("list_lanes", 2.0, 1003.0, 1),
        SlowStatement("list_runs", 0.9, 1001.0, 3),
    ]


def test_statements_are_forgotten_an_hour_after_their_slowest_execution() -> None:
    now = 0.0
    found = SlowStatements(lambda: now)
    found.add("list_runs", 5.0)
    now = KEPT_SECONDS + 1
    found.add("list_runs", 0.2)
    assert found.slowest() == [SlowStatement("list_runs", 0.2, now, 1)]
    now = 2 * KEPT_SECONDS + 2
    assert found.slowest() == []


def test_only_the_slowest_statements_are_reported() -> None:
    found = SlowStatements(lambda: 0.0)
    for number in range(1, 10):
        found.add(f"list_{number}", number)
    assert [one.name for one in found.slowest()] == ["list_9", "list_8", "list_7", "list_6", "list_5"]
