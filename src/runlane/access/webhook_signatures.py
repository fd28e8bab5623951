"""Signatures of incoming webhooks, by the rules of their senders. All of them are computed over the raw body.

Each comparison takes constant time. If the sender signs a time, a request outside the tolerance is rejected, so that a
recorded request cannot be repeated later. Messages do not contain the reason, which would help an attacker.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple, cast

import orjson

from runlane.domain.webhook_source import SourceOptions, Verifier
from runlane.errors import RunlaneError

TOLERANCE_SECONDS: Final = 300
_MAX_ID: Final = 200


class SignatureRejected(RunlaneError):
    """The signature of a webhook is missing, wrong or too old."""

    code = "signature_rejected"
    http_status = 401

    def __init__(self) -> None:
        super().__init__(
            "The signature is missing, wrong or too old. Compare the secret of the source with that of the sender, and "
            "the clocks."
        )


class HookRequest(NamedTuple):
    """A received request. The names of headers are in lower case."""

    headers: Mapping[str, str]
    body: bytes

    def header(self, name: str) -> str:
        """Return a header, empty if it is missing."""
        return self.headers.get(name.lower(), "")


class VerifiedHook(NamedTuple):
    """A verified request: its id and type, if the sender provides them, and its content.

    `challenge` is set if the sender only checks the URL; it is the response to send.
    """

    sent_id: str | None
    kind: str | None
    data: Any
    challenge: str | None = None


def verify(
    verifier: Verifier, secret: str, options: SourceOptions, request: HookRequest, now_seconds: float
) -> VerifiedHook:
    """Verify a request and return its content. Raise SignatureRejected if its signature is not valid."""
    if not _is_signed(verifier, secret, options, request, now_seconds):
        raise SignatureRejected
    data = _content(request.body)
    fields = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    match verifier:
        case Verifier.STANDARD:
            return VerifiedHook(_id(request.header("webhook-id")), _text(fields.get("type")), data)
        case Verifier.GITHUB:
            delivery = _id(request.header("x-github-delivery"))
            return VerifiedHook(delivery, _text(request.header("x-github-event")), data)
        case Verifier.STRIPE:
            return VerifiedHook(_id(fields.get("id")), _text(fields.get("type")), data)
        case Verifier.SLACK:
            return _slack(fields, data)
        case Verifier.HMAC | Verifier.BEARER:
            given = None if options.id_header is None else _id(request.header(options.id_header))
            return VerifiedHook(given, None, data)


def _is_signed(
    verifier: Verifier, secret: str, options: SourceOptions, request: HookRequest, now_seconds: float
) -> bool:
    key = secret.encode()
    match verifier:
        case Verifier.STANDARD:
            return _standard(secret, request, now_seconds)
        case Verifier.GITHUB:
            expected = f"sha256={hmac.new(key, request.body, sha256).hexdigest()}"
            return _same(request.header("x-hub-signature-256"), expected)
        case Verifier.STRIPE:
            parts = [part.strip().partition("=") for part in request.header("stripe-signature").split(",")[:20]]
            sent_at = next((value for name, _, value in parts if name == "t"), "")
            signed = sent_at.encode() + b"." + request.body
            expected = hmac.new(key, signed, sha256).hexdigest()
            return _recent(sent_at, now_seconds) and _any((value for name, _, value in parts if name == "v1"), expected)
        case Verifier.SLACK:
            sent_at = request.header("x-slack-request-timestamp")
            signed = b"v0:" + sent_at.encode() + b":" + request.body
            expected = f"v0={hmac.new(key, signed, sha256).hexdigest()}"
            return _recent(sent_at, now_seconds) and _same(request.header("x-slack-signature"), expected)
        case Verifier.HMAC:
            digest = hmac.new(key, request.body, sha256).digest()
            encoded = digest.hex() if options.encoding == "hex" else base64.b64encode(digest).decode()
            return _same(request.header(options.header), options.prefix + encoded)
        case Verifier.BEARER:
            return _same(request.header("authorization"), f"Bearer {secret}")


def _standard(secret: str, request: HookRequest, now_seconds: float) -> bool:
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        return False
    message_id, sent_at = request.header("webhook-id"), request.header("webhook-timestamp")
    signed = f"{message_id}.{sent_at}.".encode() + request.body
    expected = "v1," + base64.b64encode(hmac.new(key, signed, sha256).digest()).decode()
    # During a rotation of the secret, the header contains several signatures.
    signatures = request.header("webhook-signature").split(" ")[:20]
    return bool(message_id) and _recent(sent_at, now_seconds) and _any(signatures, expected)


def _slack(fields: Mapping[str, Any], data: Any) -> VerifiedHook:
    challenge = fields.get("challenge")
    if fields.get("type") == "url_verification" and isinstance(challenge, str):
        return VerifiedHook(None, None, data, challenge[:1000])
    event = fields.get("event")
    inner = cast("dict[str, Any]", event) if isinstance(event, dict) else {}
    return VerifiedHook(_id(fields.get("event_id")), _text(inner.get("type") or fields.get("type")), data)


def _content(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return {"text": body.decode("utf-8", "replace").replace("\0", "\ufffd")}


def _recent(sent_at: str, now_seconds: float) -> bool:
    return (
        0 < len(sent_at) <= 12
        and sent_at.isascii()
        and sent_at.isdecimal()
        and abs(now_seconds - int(sent_at)) <= TOLERANCE_SECONDS
    )


def _any(signatures: Iterable[str], expected: str) -> bool:
    # All signatures are compared, so that the time does not depend on which of them matches.
    return sum(_same(signature, expected) for signature in signatures) > 0


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def _id(value: Any) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    # A longer id is replaced by its hash, which still identifies the request.
    return (
        value if len(value) <= _MAX_ID and value.isprintable() else sha256(value.encode("utf-8", "replace")).hexdigest()
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
