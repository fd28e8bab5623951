"""The wait between attempts grows, is spread, and stays below its cap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runlane.domain.backoff import BASE_SECONDS, CAP_SECONDS, backoff_seconds

jitters = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, 10_000), jitters)
def test_a_wait_lies_between_half_the_base_and_the_cap(failures: int, jitter: float) -> None:
    assert BASE_SECONDS / 2 <= backoff_seconds(failures, jitter) <= CAP_SECONDS


@given(st.integers(1, 1_000), jitters)
def test_a_wait_never_shrinks_with_more_failures(failures: int, jitter: float) -> None:
    assert backoff_seconds(failures, jitter) <= backoff_seconds(failures + 1, jitter)


def test_the_first_waits_double() -> None:
    assert [backoff_seconds(failures, 0) for failures in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
