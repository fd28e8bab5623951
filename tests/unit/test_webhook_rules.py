"""The rules of webhooks that need no database: signatures, the waits between tries, rates, health, URLs, filters."""

from __future__ import annotations

import base64

import pytest
from standardwebhooks.webhooks import Webhook

from runlane.diagnosis.operation_findings import webhook_findings
from runlane.domain.finding import Level
from runlane.domain.webhook import (
    CIRCUIT_FAILURES,
    DELAYS_SECONDS,
    DISABLE_AFTER_US,
    DISABLE_MESSAGES,
    MAX_TRIES,
    EndpointHealth,
    allowance,
    check_filter,
    check_url,
    filter_matches,
    origin_id,
    paid_until,
    rate_wait_us,
    retry_delay_us,
)
from runlane.domain.webhook_events import WebhookType, check_types, example_of, schema_of
from runlane.domain.webhook_places import Places
from runlane.errors import InvalidRequest
from runlane.store.webhooks.retention import WebhookOverview
from runlane.templates.json_schema import misfit
from runlane.webhooks.signing import check_secret, new_secret, sign, signed_headers

SECOND_US = 1_000_000
NEW = EndpointHealth(0, 0, None, None, None)


def test_the_signature_is_that_of_the_specification() -> None:
    """The vector of the reference implementations of Standard Webhooks."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    signature = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_new_secrets_sign_what_the_independent_library_verifies() -> None:
    import time

    first, second = new_secret("hmac")[0], new_secret("hmac")[0]
    assert len(base64.b64decode(first.removeprefix("whsec_"))) == 32
    headers = signed_headers([second, first], "msg_1", int(time.time()), b"{}")
    for secret in (first, second):
        assert Webhook(secret).verify(b"{}", headers) == {}
    assert signed_headers([], "msg_1", 5, b"{}") == {"webhook-id": "msg_1", "webhook-timestamp": "5"}
    private, public = new_secret("ed25519")
    assert private.startswith("whsk_")
    assert (public or "").startswith("whpk_")


def test_a_secret_that_is_not_base64_after_its_prefix_is_refused() -> None:
    assert check_secret("any other string") == "any other string"
    with pytest.raises(InvalidRequest, match="base64"):
        check_secret("whsec_!!!")


def test_ten_tries_within_76_hours() -> None:
    waits = [retry_delay_us(tries, MAX_TRIES, 0.5, None) for tries in range(1, MAX_TRIES)]
    assert waits == [seconds * SECOND_US for seconds in DELAYS_SECONDS]
    assert MAX_TRIES == 10
    assert 75 * 3600 < sum(DELAYS_SECONDS) < 76 * 3600
    assert retry_delay_us(MAX_TRIES, MAX_TRIES, 0.5, 5.0) is None
    assert retry_delay_us(1, 1, 0.5, None) is None


def test_waits_are_spread_and_follow_retry_after_up_to_an_hour() -> None:
    assert retry_delay_us(1, 10, 0.0, None) == 4 * SECOND_US
    assert retry_delay_us(1, 10, 0.999999, None) == pytest.approx(6 * SECOND_US, rel=0.001)
    assert retry_delay_us(1, 10, 0.5, 60.0) == 60 * SECOND_US
    assert retry_delay_us(1, 10, 0.5, 86400.0) == 3600 * SECOND_US
    # A shorter Retry-After does not shorten the wait.
    assert retry_delay_us(2, 10, 0.5, 1.0) == 300 * SECOND_US


def test_a_rate_saves_up_one_second() -> None:
    now = 10**15
    assert allowance(10.0, 0, now) == 10
    used = paid_until(10.0, 0, now, 10)
    assert allowance(10.0, used, now) == 0
    assert allowance(10.0, used, now + SECOND_US // 2) == 5
    assert allowance(0.1, 0, now) == 1
    assert allowance(0.1, paid_until(0.1, 0, now, 1), now + 5 * SECOND_US) == 0
    assert allowance(0.1, paid_until(0.1, 0, now, 1), now + 10 * SECOND_US) == 1


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0, 7.0, 1000.0])
def test_the_wait_for_a_rate_ends_when_it_allows_a_delivery(rate: float) -> None:
    now, paid = 1_000_000 * SECOND_US, 0
    assert rate_wait_us(rate, paid, now) <= 0
    for _ in range(5):
        taken = allowance(rate, paid, now)
        assert taken > 0
        paid = paid_until(rate, paid, now, taken)
        wait = rate_wait_us(rate, paid, now)
        assert wait > 0
        assert allowance(rate, paid, now + wait - 2) == 0
        now += wait


def test_an_endpoint_and_a_tenant_leave_places_of_a_process_free() -> None:
    places = Places.of_process(10, [("acme", "we_a")] * 5)
    assert (places.free, places.share("acme", "we_a", 1), places.share("acme", "we_b", 1)) == (5, 1, 3)
    places.take("acme", "we_b", 3)
    assert (places.free, places.share("acme", "we_c", 1), places.share("other", "we_d", 1)) == (2, 0, 2)
    # The free places are divided among the endpoints that have due deliveries.
    assert Places.of_process(10, []).share("acme", "we_a", 4) == 3


@pytest.mark.parametrize("total", [1, 2, 3])
def test_a_process_with_few_places_uses_them(total: int) -> None:
    places = Places.of_process(total, [])
    for number in range(total):
        assert places.share(f"tenant {number}", f"we_{number}", 1) == 1
        places.take(f"tenant {number}", f"we_{number}", 1)
    assert places.free == 0


def test_a_circuit_opens_after_twenty_failures_and_closes_with_a_success() -> None:
    health = NEW
    for number in range(CIRCUIT_FAILURES):
        assert health.probe_at_us is None
        health = health.failed(number, first_try=number % 2 == 0)
    assert (health.failures, health.failed_messages, health.first_failure_at_us) == (20, 10, 0)
    assert health.probe_at_us == 19 + 15 * SECOND_US
    for number in range(20, 60):
        health = health.failed(number, first_try=False)
    assert health.probe_at_us == 59 + 300 * SECOND_US
    assert health.succeeded(99) == EndpointHealth(0, 0, None, 99, None)


def test_an_endpoint_is_disabled_after_days_and_many_messages() -> None:
    long_ago = EndpointHealth(50, DISABLE_MESSAGES, 0, None, None)
    assert long_ago.must_disable(DISABLE_AFTER_US)
    assert not long_ago.must_disable(DISABLE_AFTER_US - 1)
    assert not EndpointHealth(500, DISABLE_MESSAGES - 1, 0, None, None).must_disable(DISABLE_AFTER_US)
    assert not NEW.must_disable(DISABLE_AFTER_US)


@pytest.mark.parametrize(
    "url",
    ["", "example.com", "ftp://example.com", "https://", "https://u:p@example.com", "https://[::1", "https://a b"],
)
def test_a_url_that_cannot_be_called_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        check_url(url)


def test_runs_of_one_origin_share_their_rate() -> None:
    assert origin_id("default", "https://EXAMPLE.com/a?x=1") == origin_id("default", "https://example.com/b")
    assert origin_id("default", "https://example.com/") != origin_id("acme", "https://example.com/")
    assert origin_id("default", "https://example.com/") != origin_id("default", "https://example.com:8443/")


def test_filters_are_checked_and_all_of_them_must_match() -> None:
    wanted = check_filter({"target": "greet", "lane": ["a", "b"], "tag": ["x"]})
    assert filter_matches(wanted, {"target": "greet", "lane": "b", "tags": ["x", "y"]})
    assert not filter_matches(wanted, {"target": "greet", "lane": "c", "tags": ["x"]})
    assert not filter_matches(wanted, {"target": "greet", "lane": "a"})
    with pytest.raises(InvalidRequest, match="is not a filter"):
        check_filter({"user": ["x"]})
    with pytest.raises(InvalidRequest, match="did you mean"):
        check_types(["run.complete"])


@pytest.mark.parametrize("kind", list(WebhookType))
def test_every_type_has_an_example_that_matches_its_schema(kind: WebhookType) -> None:
    assert misfit(example_of(kind), schema_of(kind)) is None
    assert misfit({"type": kind.value, "timestamp": "now", "data": {}}, schema_of(kind)) is not None


def test_doctor_reports_disabled_endpoints_and_messages_that_no_process_sends() -> None:
    (fine,) = webhook_findings(WebhookOverview(0, 3, 5.0, untried=False), delivers=True)
    assert fine.level is Level.OK
    disabled, stuck = webhook_findings(WebhookOverview(2, 3, 500.0, untried=True), delivers=False)
    assert (disabled.level, stuck.level) == (Level.WARNING, Level.WARNING)
    assert "RUNLANE_WEBHOOKS=true" in (stuck.cure or "")
    failing, old = webhook_findings(WebhookOverview(0, 3, 7200.0, untried=False, failing=1), delivers=True)
    assert "20 times in a row" in failing.message
    assert "the oldest for 2.0 hours" in old.message
