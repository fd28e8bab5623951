"""Limits and keys of tenants, with a given clock."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.domain.tenant import TenantLimits, TenantUsage, admit, bare_key, check_limits, check_tenant_id, scoped_key
from runlane.errors import InvalidRequest, QueueLimited, RateLimited

SECOND = 1_000_000_000


def usage(open: int = 0, paid: int = 0, now: int = 1_000 * SECOND) -> TenantUsage:  # noqa: A002
    return TenantUsage(open, paid, now)


def test_no_limits_are_false_and_allow_everything() -> None:
    assert not TenantLimits()
    assert TenantLimits(max_queued=0)
    assert admit("t", TenantLimits(), usage(open=10**9), 10**6) is None


def test_the_queue_limit_counts_what_is_admitted() -> None:
    now = usage(open=7)
    assert admit("t", TenantLimits(max_queued=10), now, 3) is None
    assert now.open == 10
    refusal = admit("t", TenantLimits(max_queued=10), now, 1)
    assert isinstance(refusal, QueueLimited)
    assert (refusal.limit, refusal.code, refusal.http_status) == ("queue", "queue_limited", 429)
    assert refusal.retry_after_seconds > 0
    assert now.open == 10


def test_a_group_is_refused_whole_and_uses_nothing() -> None:
    now = usage(open=8)
    before = now.rate_paid_until_ns
    assert isinstance(admit("t", TenantLimits(max_queued=10, rate_per_second=100), now, 3), QueueLimited)
    assert (now.open, now.rate_paid_until_ns) == (8, before)
    assert admit("t", TenantLimits(max_queued=10, rate_per_second=100), now, 2) is None


def test_the_bound_of_running_runs_does_not_bound_accepts() -> None:
    assert admit("t", TenantLimits(max_running=2), usage(open=50), 50) is None


@pytest.mark.parametrize("rate", [1, 3, 7, 10, 300, 999, 1000, 9_999, 10_000])
def test_one_second_takes_the_rate_exactly_and_the_next_again(rate: int) -> None:
    now = usage()
    for second in range(3):
        now.now_ns = (1_000 + second) * SECOND
        taken = 0
        while admit("t", TenantLimits(rate_per_second=rate), now, 1) is None:
            taken += 1
        assert taken == rate


def test_a_slow_rate_lets_one_run_through_at_a_time() -> None:
    now, limits = usage(), TenantLimits(rate_per_second=0.5)
    assert admit("t", limits, now, 1) is None
    refusal = admit("t", limits, now, 1)
    assert isinstance(refusal, RateLimited)
    assert refusal.retry_after_seconds == 2.0
    now.now_ns += 2 * SECOND
    assert admit("t", limits, now, 1) is None


def test_a_group_larger_than_a_limit_is_refused() -> None:
    for limits in (TenantLimits(rate_per_second=5), TenantLimits(max_queued=5)):
        refusal = admit("t", limits, usage(), 6)
        assert "At most 5 can be accepted at once" in str(refusal)
        assert "Try again later" in str(admit("t", limits, usage(open=5, paid=1_001 * SECOND), 1))


@given(
    rate=st.floats(min_value=0.001, max_value=10_000),
    steps=st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 20)), min_size=1, max_size=60),
)
def test_no_span_gets_more_than_the_rate_and_one_second_on_top(rate: float, steps: list[tuple[int, int]]) -> None:
    now, limits = usage(), TenantLimits(rate_per_second=rate)
    taken: list[tuple[int, int]] = []
    for pause, count in steps:
        now.now_ns += pause
        if admit("t", limits, now, count) is None:
            taken.append((now.now_ns, count))
    room = max(1.0, 1 / rate)
    for first, (start, _) in enumerate(taken):
        for end, _ in taken[first:]:
            total = sum(count for at, count in taken if start <= at <= end)
            assert total <= rate * ((end - start) / SECOND + room) * (1 + 2e-5) + 1e-6


@given(rate=st.floats(min_value=0.001, max_value=10_000), burst=st.integers(1, 30))
def test_the_reported_wait_is_long_enough(rate: float, burst: int) -> None:
    now, limits = usage(), TenantLimits(rate_per_second=rate)
    for _ in range(burst):
        admit("t", limits, now, 1)
    refusal = admit("t", limits, now, 1)
    if refusal is not None:
        now.now_ns += math.ceil(refusal.retry_after_seconds * SECOND) + 1
        assert admit("t", limits, now, 1) is None


@pytest.mark.parametrize(
    "limits",
    [
        TenantLimits(max_queued=-1),
        TenantLimits(max_running=-1),
        TenantLimits(max_queued=10**10),
        TenantLimits(rate_per_second=0),
        TenantLimits(rate_per_second=-1),
        TenantLimits(rate_per_second=math.nan),
        TenantLimits(rate_per_second=math.inf),
        TenantLimits(rate_per_second=20_000),
    ],
)
def test_limits_without_sense_are_refused(limits: TenantLimits) -> None:
    with pytest.raises(InvalidRequest):
        check_limits(limits)


@pytest.mark.parametrize("tenant", ["", "Acme", "a b", "-a", "a\x1fb", "x" * 64, "a\n", "ä"])
def test_tenant_ids_are_plain(tenant: str) -> None:
    with pytest.raises(InvalidRequest):
        check_tenant_id(tenant)


def test_keys_are_each_tenants_own() -> None:
    assert scoped_key("default", "k") == "k"
    assert scoped_key("acme", "k") != scoped_key("other", "k") != "k"
    assert bare_key(scoped_key("acme", "k")) == bare_key(scoped_key("default", "k")) == "k"


@pytest.mark.parametrize("tenant", ["default", "acme"])
def test_no_key_can_be_written_as_another_tenants(tenant: str) -> None:
    with pytest.raises(InvalidRequest, match="U\\+001F"):
        scoped_key(tenant, "acme\x1fk")
