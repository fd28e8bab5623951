"""Signatures of webhooks by the Standard Webhooks specification 1.0.

The signature covers the message's id, the time of the try and the body, joined by full stops. `v1` is an HMAC with
SHA-256, `v1a` an ed25519 signature. While a secret is being replaced, the header has one signature per secret, newest
first.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from runlane.domain.webhook import SignatureKind
from runlane.errors import InvalidRequest

SECRET: Final = "whsec_"  # noqa: S105 - a prefix
PRIVATE_KEY: Final = "whsk_"
PUBLIC_KEY: Final = "whpk_"
_SECRET_BYTES: Final = 32


def new_secret(kind: SignatureKind) -> tuple[str, str | None]:
    """Return a new secret, and its public key if it has one."""
    raw = secrets.token_bytes(_SECRET_BYTES)
    if kind == "hmac":
        return SECRET + base64.b64encode(raw).decode(), None
    return PRIVATE_KEY + base64.b64encode(raw).decode(), public_key_of(raw)


def public_key_of(raw: bytes) -> str:
    """Return the public key of an ed25519 key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = Ed25519PrivateKey.from_private_bytes(raw).public_key().public_bytes_raw()
    return PUBLIC_KEY + base64.b64encode(public).decode()


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a message with one secret, with its version."""
    content = f"{message_id}.{timestamp}.".encode() + body
    if secret.startswith(PRIVATE_KEY):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.from_private_bytes(_decoded(secret.removeprefix(PRIVATE_KEY)))
        return "v1a," + base64.b64encode(key.sign(content)).decode()
    return "v1," + base64.b64encode(hmac.digest(hmac_key(secret), content, "sha256")).decode()


def hmac_key(secret: str) -> bytes:
    """Return the key of a secret: the bytes after `whsec_`, or those of any other string as it is written."""
    return _decoded(secret.removeprefix(SECRET)) if secret.startswith(SECRET) else secret.encode()


def signed_headers(secrets_in_force: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that identify and sign a message. Without a secret there is no signature."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    if secrets_in_force:
        signatures = [sign(secret, message_id, timestamp, body) for secret in secrets_in_force]
        headers["webhook-signature"] = " ".join(signatures)
    return headers


def plain_headers(secret: str | None, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of runs' own webhooks for receivers that check an HMAC of only the body."""
    headers = {"x-synapse-timestamp": str(timestamp)}
    if secret is not None:
        headers["x-synapse-signature"] = f"sha256={hmac.digest(secret.encode(), body, 'sha256').hex()}"
    return headers


def check_secret(secret: str) -> str:
    """Return a caller's secret if it can sign: after `whsec_` it must be base64."""
    if secret.startswith(SECRET):
        _decoded(secret.removeprefix(SECRET))
    return secret


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("A webhook secret that begins with whsec_ must continue with base64.") from None
