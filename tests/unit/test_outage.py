"""An outage of the database is one warning, a reminder now and then, and one line when it is over."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.observability.outage import OutageLog


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, "level": "warning", **fields})

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, "level": "info", **fields})

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Lines:
    lines = Lines()
    monkeypatch.setattr("runlane.observability.outage.log", lines)
    return lines


def test_many_failures_are_one_warning_and_one_line_when_it_is_back(logged: Lines) -> None:
    clock = [100.0]
    log = OutageLog(lambda: clock[0])
    log.succeeded()
    for _ in range(200):
        log.failed("a heartbeat", "no connection")
        clock[0] += 0.1
    clock[0] += 1.0
    log.succeeded()
    log.succeeded()
    assert logged.lines == [
        {"event": "database_away", "level": "warning", "during": "a heartbeat", "error": "no connection"},
        {"event": "database_back", "level": "info", "seconds": 21.0, "failures": 200},
    ]


def test_a_long_outage_is_repeated_every_half_minute(logged: Lines) -> None:
    clock = [100.0]
    log = OutageLog(lambda: clock[0])
    for _ in range(70):
        log.failed("a claim", "no connection")
        clock[0] += 1.0
    assert logged.events == ["database_away", "database_still_away", "database_still_away"]
    assert [line.get("failures") for line in logged.lines] == [None, 31, 61]


def test_a_success_between_failures_does_not_end_it(logged: Lines) -> None:
    clock = [100.0]
    log = OutageLog(lambda: clock[0])
    for _ in range(5):
        log.failed("a claim", "no connection")
        clock[0] += 0.1
        log.succeeded()
    assert logged.events == ["database_away"]
