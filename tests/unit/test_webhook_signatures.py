"""Signatures of incoming webhooks: the vendors' documented examples, and everything that must be rejected."""

from __future__ import annotations

import base64
import hmac
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlane.access.webhook_signatures import TOLERANCE_SECONDS, HookRequest, SignatureRejected, verify
from runlane.domain.webhook_source import SourceOptions, Verifier, event_name

PLAIN = SourceOptions()
# https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
GITHUB = (
    Verifier.GITHUB,
    "It's a Secret to Everybody",
    b"Hello, World!",
    {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
    0,
)
# https://api.slack.com/authentication/verifying-requests-from-slack
SLACK = (
    Verifier.SLACK,
    "8f742231b10e8888abcd99yyyzzz85a5",
    (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    ),
    {
        "x-slack-request-timestamp": "1531420618",
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    },
    1531420618,
)
# The example of the Standard Webhooks specification's reference implementations.
STANDARD = (
    Verifier.STANDARD,
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    b'{"test": 2432232314}',
    {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    },
    1614265330,
)
# Computed with openssl dgst -sha256 -hmac, by the rules of https://docs.stripe.com/webhooks/signature
STRIPE = (
    Verifier.STRIPE,
    "whsec_test_secret",
    b'{"id":"evt_1","type":"invoice.paid"}',
    {
        "stripe-signature": (
            "t=1492774577,v0=6ffbb59b2300aae63f27,v1=f7a632a9ffdbb1ced2fc48e44c374ec2cb4292469db292862c06ae703e2befbd"
        )
    },
    1492774577,
)
EXAMPLES = [GITHUB, SLACK, STANDARD, STRIPE]
TIMED = [SLACK, STANDARD, STRIPE]


def check(example: Any, **changes: Any) -> Any:
    verifier, secret, body, headers, now = example
    request = HookRequest(changes.get("headers", headers), changes.get("body", body))
    return verify(verifier, changes.get("secret", secret), PLAIN, request, changes.get("now", now))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example[0])
def test_the_documented_example_is_accepted(example: Any) -> None:
    assert check(example).challenge is None


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example[0])
def test_another_body_secret_or_signature_is_rejected(example: Any) -> None:
    headers = example[3]
    changes: list[dict[str, Any]] = [
        {"body": example[2] + b" "},
        {"body": b""},
        {"secret": "whsec_" + base64.b64encode(b"x" * 24).decode()},
        {"headers": {}},
    ]
    for name, value in headers.items():
        others = {"", value[:-1], value + "0", "é", value.swapcase()} - {value}
        changes += [{"headers": {**headers, name: other}} for other in sorted(others)]
    for change in changes:
        with pytest.raises(SignatureRejected):
            check(example, **change)


@pytest.mark.parametrize("example", TIMED, ids=lambda example: example[0])
@pytest.mark.parametrize("offset", [-1, 1])
def test_a_recorded_request_is_accepted_for_a_short_time_only(example: Any, offset: int) -> None:
    check(example, now=example[4] + offset * TOLERANCE_SECONDS)
    with pytest.raises(SignatureRejected):
        check(example, now=example[4] + offset * (TOLERANCE_SECONDS + 1))


def test_one_of_several_signatures_is_enough_during_a_rotation() -> None:
    headers = STANDARD[3]
    both = f"v1,{base64.b64encode(b'x' * 32).decode()} {headers['webhook-signature']} v1a,zzz"
    check(STANDARD, headers={**headers, "webhook-signature": both})


@pytest.mark.parametrize(
    ("options", "signature"),
    [
        (SourceOptions(header="X-Sign", prefix="sha256="), "hex"),
        (SourceOptions(header="X-Sign", encoding="base64"), "base64"),
    ],
)
def test_hmac_in_its_forms(options: SourceOptions, signature: str) -> None:
    body, secret = b'{"a":1}', "12345678"
    digest = hmac.new(secret.encode(), body, sha256).digest()
    value = options.prefix + (digest.hex() if signature == "hex" else base64.b64encode(digest).decode())
    assert verify(Verifier.HMAC, secret, options, HookRequest({"x-sign": value}, body), 0).data == {"a": 1}
    with pytest.raises(SignatureRejected):
        verify(Verifier.HMAC, secret, options, HookRequest({"x-sign": value + "="}, body), 0)


def test_bearer_and_ids() -> None:
    options = SourceOptions(id_header="X-Request-Id")
    request = HookRequest({"authorization": "Bearer 12345678", "x-request-id": "r-1"}, b"plain \x00 text")
    hook = verify(Verifier.BEARER, "12345678", options, request, 0)
    assert (hook.sent_id, hook.kind, hook.data) == ("r-1", None, {"text": "plain \ufffd text"})
    for sent in ("Bearer 12345679", "bearer 12345678", "12345678", ""):
        with pytest.raises(SignatureRejected):
            verify(Verifier.BEARER, "12345678", options, HookRequest({"authorization": sent}, b""), 0)


def signed_slack(body: bytes) -> HookRequest:
    digest = hmac.new(b"12345678", b"v0:100:" + body, sha256).hexdigest()
    return HookRequest({"x-slack-request-timestamp": "100", "x-slack-signature": f"v0={digest}"}, body)


def test_slack_gets_its_challenge_only_with_a_signature() -> None:
    body = b'{"type":"url_verification","challenge":"abc"}'
    assert verify(Verifier.SLACK, "12345678", PLAIN, signed_slack(body), 100).challenge == "abc"
    with pytest.raises(SignatureRejected):
        verify(Verifier.SLACK, "87654321", PLAIN, signed_slack(body), 100)
    event = b'{"type":"event_callback","event_id":"Ev1","event":{"type":"message"}}'
    hook = verify(Verifier.SLACK, "12345678", PLAIN, signed_slack(event), 100)
    assert (hook.sent_id, hook.kind) == ("Ev1", "message")


@given(st.sampled_from(list(Verifier)), st.dictionaries(st.text(), st.text()), st.binary())
def test_whatever_is_sent_without_the_secret_is_rejected(
    verifier: Verifier, headers: dict[str, str], body: bytes
) -> None:
    with pytest.raises(SignatureRejected):
        verify(verifier, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", PLAIN, HookRequest(headers, body), 1)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("push", "github.push"),
        ("invoice.paid", "github.invoice.paid"),
        ("a:b/c", "github.a.b.c"),
        (None, "github"),
        ("no spaces", "github"),
        ("x" * 200, "github"),
        ("..", "github"),
    ],
)
def test_names_of_events(kind: str | None, name: str) -> None:
    assert event_name("github", kind) == name
