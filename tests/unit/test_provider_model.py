"""Limits of providers as values: defaults, changes, the decision about one call, and how long to back off."""

from __future__ import annotations

import pytest

from runlane.domain.rate_limit import (
    CredentialLoad,
    LimitChange,
    LimitKind,
    ProviderLimits,
    back_off_seconds,
    changed_limits,
    check_credential,
    counted_tokens,
    default_limits,
    describe_refusal,
    refused_by,
    seconds_until_room,
)
from runlane.errors import InvalidRequest


@pytest.mark.parametrize(
    ("credential", "in_flight"),
    [
        ("ollama", 1),
        ("anthropic", 4),
        ("openai", 8),
        ("openai@acme", 8),
        ("openai:llm.local:8000", 8),
        ("google", None),
    ],
)
def test_defaults_are_by_what_comes_before_the_colon_or_the_at(credential: str, in_flight: int | None) -> None:
    assert default_limits(check_credential(credential)) == ProviderLimits(in_flight)


@pytest.mark.parametrize("credential", ["", " openai", "a{b}", "ope nai", "a\x00", "x" * 201, "a/b", "@x"])
def test_invalid_credentials_are_refused(credential: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a valid credential"):
        check_credential(credential)


def test_a_change_keeps_what_it_leaves_out() -> None:
    limits = changed_limits(ProviderLimits(8), LimitChange(requests_per_minute=60))
    assert limits == ProviderLimits(8, 60)
    assert changed_limits(limits, LimitChange(unlimited=frozenset({"in_flight"}))) == ProviderLimits(None, 60)
    assert not changed_limits(ProviderLimits(8), LimitChange(unlimited=frozenset({"in_flight"})))


@pytest.mark.parametrize(
    "change",
    [
        LimitChange(),
        LimitChange(in_flight=-1),
        LimitChange(requests_per_minute=0),
        LimitChange(tokens_per_minute=2_000_000_000),
        LimitChange(unlimited=frozenset({"speed"})),
        LimitChange(in_flight=1, unlimited=frozenset({"in_flight"})),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(change: LimitChange) -> None:
    with pytest.raises(InvalidRequest):
        changed_limits(ProviderLimits(8), change)


@pytest.mark.parametrize(
    ("limits", "load", "tokens", "kind"),
    [
        (ProviderLimits(), CredentialLoad(in_flight=99), 1, None),
        (ProviderLimits(), CredentialLoad(slow_seconds=0.1), 1, LimitKind.SLOW),
        (ProviderLimits(2), CredentialLoad(in_flight=1), 1, None),
        (ProviderLimits(2), CredentialLoad(in_flight=2), 1, LimitKind.IN_FLIGHT),
        (ProviderLimits(2), CredentialLoad(in_flight=1, ahead=1), 1, LimitKind.IN_FLIGHT),
        (ProviderLimits(3), CredentialLoad(in_flight=1, ahead=1), 1, None),
        (ProviderLimits(0), CredentialLoad(), 1, LimitKind.IN_FLIGHT),
        (ProviderLimits(None, 5), CredentialLoad(requests=4), 1, None),
        (ProviderLimits(None, 5), CredentialLoad(requests=5), 1, LimitKind.REQUESTS),
        (ProviderLimits(None, 5), CredentialLoad(requests=4, ahead=1), 1, LimitKind.REQUESTS),
        (ProviderLimits(None, None, 100), CredentialLoad(tokens=50), 50, None),
        (ProviderLimits(None, None, 100), CredentialLoad(tokens=50), 51, LimitKind.TOKENS),
        (ProviderLimits(None, None, 100), CredentialLoad(ahead=1), 1, LimitKind.TOKENS),
        (ProviderLimits(None, None, 100), CredentialLoad(), 5000, None),
        (ProviderLimits(None, None, 100), CredentialLoad(tokens=1), 5000, LimitKind.TOKENS),
    ],
)
def test_one_more_call_is_let_in_or_not(
    limits: ProviderLimits, load: CredentialLoad, tokens: int, kind: LimitKind | None
) -> None:
    assert refused_by(limits, load, tokens) == kind


def test_refusals_are_plain_sentences() -> None:
    limits = ProviderLimits(8, 60, 1000)
    refusals = [
        describe_refusal("openai", limits, CredentialLoad(in_flight=8), LimitKind.IN_FLIGHT, 5, None).reason,
        describe_refusal("openai", limits, CredentialLoad(in_flight=7, ahead=2), LimitKind.IN_FLIGHT, 5, None).reason,
        describe_refusal("openai", ProviderLimits(0), CredentialLoad(), LimitKind.IN_FLIGHT, 5, None).reason,
        describe_refusal("openai", limits, CredentialLoad(requests=60), LimitKind.REQUESTS, 5, 12.0).reason,
        describe_refusal("openai", limits, CredentialLoad(tokens=999), LimitKind.TOKENS, 5, 12.0).reason,
        describe_refusal(
            "openai", limits, CredentialLoad(slow_seconds=11.2, slow_reason="429"), LimitKind.SLOW, 5, None
        ).reason,
    ]
    assert refusals == [
        "openai: 8 of 8 calls are in flight",
        "openai: 7 of 8 calls are in flight, and 2 processes wait longer",
        "openai: paused, its limit is 0 calls in flight",
        "openai: 60 of 60 requests of this minute are used",
        "openai: 999 of 1000 tokens of this minute are used, and this call needs about 5",
        "openai: backing off for 12 s more (429)",
    ]


def test_the_time_until_there_is_room_is_known() -> None:
    used = {50: 3, 10: 2}
    assert seconds_until_room(used, 6, 1) is None
    assert seconds_until_room(used, 5, 1) == 11
    assert seconds_until_room(used, 2, 1) == 51
    assert seconds_until_room({}, 0, 1) == 60


def test_reservations_never_exceed_the_limit() -> None:
    assert counted_tokens(ProviderLimits(), 5000) == 5000
    assert counted_tokens(ProviderLimits(tokens_per_minute=100), 5000) == 100
    assert counted_tokens(ProviderLimits(), -3) == 0


def test_a_back_off_grows_to_a_minute_and_obeys_the_provider() -> None:
    assert [back_off_seconds(streak, None, 1.0) for streak in (1, 2, 3, 7, 40)] == [1, 2, 4, 60, 60]
    assert back_off_seconds(3, None, 0.0) == 2
    assert back_off_seconds(1, 17.0, 0.5) == 17
    assert back_off_seconds(7, 2.0, 1.0) == 60
    assert back_off_seconds(1, 1e9, 0.0) == 3600
    assert back_off_seconds(1, float("nan"), 1.0) == 1
