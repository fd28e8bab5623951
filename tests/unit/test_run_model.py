"""The state machine and the queue's order, exhaustively."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.domain.run import (
    MAX_PRIORITY,
    MIN_PRIORITY,
    PRIORITY_STEP_US,
    TERMINAL,
    TRANSITIONS,
    WAITING,
    Cause,
    Status,
    may_become,
    rank,
)

priorities = st.integers(MIN_PRIORITY, MAX_PRIORITY)
times = st.integers(0, 4_000_000_000_000_000)

# Written out a second time on purpose: a change of the table must be a change of two places.
EXPECTED = {
    "awaiting_approval": {"approve": "scheduled queued blocked", "cancel": "cancelled", "expire": "cancelled"},
    "scheduled": {"due": "queued blocked", "cancel": "cancelled", "expire": "cancelled"},
    "blocked": {
        "approve": "blocked",
        "key_free": "awaiting_approval scheduled queued blocked",
        "dependencies_met": "awaiting_approval scheduled queued blocked",
        "admit": "queued",
        "cancel": "cancelled",
        "expire": "cancelled",
    },
    "queued": {"claim": "running", "withdraw": "blocked", "cancel": "cancelled", "expire": "cancelled"},
    "running": {
        "finish": "completed",
        "fail": "failed",
        "retry": "queued scheduled cancelled",
        "hand_back": "queued cancelled",
        "lost": "queued scheduled failed cancelled",
        "pause": "paused cancelled",
        "cancel": "cancelled",
    },
    "paused": {"resume": "queued blocked", "due": "queued blocked", "cancel": "cancelled"},
    "completed": {},
    "failed": {"revive": "queued scheduled blocked"},
    "cancelled": {},
}


@pytest.mark.parametrize(("status", "cause"), list(product(Status, Cause)))
def test_every_status_and_cause_leads_to_the_designed_status(status: Status, cause: Cause) -> None:
    expected = frozenset(Status(name) for name in EXPECTED[status].get(cause, "").split())
    assert may_become(status, cause) == expected


def test_the_table_names_no_change_that_leads_nowhere() -> None:
    assert all(TRANSITIONS.values())


@pytest.mark.parametrize("status", Status)
def test_a_status_is_terminal_or_waiting_or_running(status: Status) -> None:
    assert [status.terminal, status.waiting, status is Status.RUNNING].count(True) == 1


def test_terminal_and_waiting_match_the_statuses() -> None:
    assert {status for status in Status if status.terminal} == TERMINAL
    assert {status for status in Status if status.waiting} == WAITING


@pytest.mark.parametrize("status", [status for status in Status if not status.terminal])
def test_a_run_can_be_cancelled_in_every_state_that_is_not_final(status: Status) -> None:
    assert may_become(status, Cause.CANCEL) == {Status.CANCELLED}


@pytest.mark.parametrize("cause", Cause)
def test_nothing_moves_a_cancelled_or_completed_run(cause: Cause) -> None:
    assert not may_become(Status.CANCELLED, cause)
    assert not may_become(Status.COMPLETED, cause)


def test_every_state_can_reach_an_end() -> None:
    reaches = set(TERMINAL)
    while True:
        more = {status for (status, _), to in TRANSITIONS.items() if to & reaches} - reaches
        if not more:
            break
        reaches |= more
    assert reaches == set(Status)


@given(times, times, priorities)
def test_with_equal_priority_the_earlier_run_goes_first(one: int, two: int, priority: int) -> None:
    assert (rank(one, priority) < rank(two, priority)) == (one < two)


@given(times, priorities, priorities)
def test_at_the_same_moment_the_higher_priority_goes_first(at: int, one: int, two: int) -> None:
    assert (rank(at, one) < rank(at, two)) == (one > two)


@given(times, priorities, priorities)
def test_the_lowest_run_is_overtaken_only_for_a_bounded_time(at: int, low: int, high: int) -> None:
    bound = (MAX_PRIORITY - MIN_PRIORITY) * PRIORITY_STEP_US
    assert rank(at, low) < rank(at + bound + 1, high)
