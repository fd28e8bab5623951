"""The decision whether one more model call may be paid for."""

from __future__ import annotations

from runlane.domain.budget import CapReached, SpendingCap, check_caps


def test_without_a_cap_or_below_it_nothing_is_refused() -> None:
    assert check_caps([]) is None
    assert (
        check_caps([SpendingCap("run", None, 1e9), SpendingCap("step", 1.0, 0.99), SpendingCap("tenant", 5.0, 0.0)])
        is None
    )


def test_a_cap_that_is_reached_is_named() -> None:
    assert check_caps([SpendingCap("run", 1.0, 1.0, "ask")]) == CapReached("run", 1.0, 1.0, "ask")
    capped = check_caps([SpendingCap("agent", 2.0, 2.345, "ask", "writer"), SpendingCap("run", 5.0, 1.0)])
    assert capped is not None
    assert capped.message == (
        'The agent "writer" has cost $2.35 of at most $2.00 today (UTC). Raise its max_cost_usd_per_day, or wait for '
        "tomorrow."
    )


def test_a_cap_that_fails_wins_over_one_that_asks_and_the_nearest_is_named_first() -> None:
    ask, fail = SpendingCap("step", 1.0, 1.0, "ask"), SpendingCap("tenant", 1.0, 3.0, "fail", "acme")
    assert check_caps([ask, fail]) == CapReached("tenant", 1.0, 3.0, "fail", "acme")
    nearest = check_caps([SpendingCap("tenant", 1.0, 1.0, "ask", "acme"), ask])
    assert nearest is not None
    assert nearest.scope == "step"


def test_every_scope_explains_what_to_do() -> None:
    messages = {
        scope: CapReached(scope, 0.001, 0.0012, "fail", "acme").message for scope in ("step", "run", "agent", "tenant")
    }
    assert all("$0.0012 of at most $0.001" in message for message in messages.values())
    assert "runlane tenants set acme --max-cost-per-day" in messages["tenant"]


def test_rounding_does_not_raise_a_cap() -> None:
    spent = sum([0.1] * 8)
    assert spent < 0.8
    assert check_caps([SpendingCap("tenant", 0.8, spent)]) is not None
