"""Stream tokens: short-lived, signed permissions to read the streams of one run, conversation or thread.

The EventSource of browsers cannot send headers, so a page uses a token in the URL instead of a key. A token names the
key that issued it and is valid as long as that key, so revoking the key revokes its tokens and ends their streams. A
token is signed with a key derived from the secret key, so read access to the database is not enough to forge one.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

import orjson

from runlane.access.keyring import Keyring
from runlane.domain.access import Permission, Principal
from runlane.errors import Unauthorized

TOKEN_PREFIX: Final = "st-rl-"  # noqa: S105 - not a secret
MAX_TOKEN_SECONDS: Final = 3600
MIN_TOKEN_SECONDS: Final = 10
DEFAULT_TOKEN_SECONDS: Final = 300
_MAX_CHARACTERS: Final = 2000


class StreamScope(StrEnum):
    """The kind of subject to which the streams of a token belong."""

    RUN = "run"
    CONVERSATION = "session"
    THREAD = "thread"


@dataclass(frozen=True, slots=True)
class StreamGrant:
    """The content of a token. `expires_at` is in seconds since the epoch."""

    key_id: str
    tenant: str
    scope: StreamScope
    subject: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class StreamPrincipal(Principal):
    """The principal of a stream token: the key that issued it, restricted to the streams of one subject."""

    stream: StreamGrant | None = None

    @classmethod
    def of(cls, principal: Principal, grant: StreamGrant) -> StreamPrincipal:
        """Return the principal of a token. It may only read."""
        return cls(
            principal.key_id,
            principal.name,
            principal.tenant,
            principal.role,
            principal.permissions & {Permission.RUNS_READ, Permission.MEMORY_READ},
            principal.expires_at_us,
            stream=grant,
        )


def sign_token(keyring: Keyring, grant: StreamGrant) -> str:
    """Return the token for a grant. Raise NoSecretKey without a secret key."""
    payload = orjson.dumps([grant.key_id, grant.tenant, grant.scope, grant.subject, grant.expires_at])
    key_id, mac = keyring.sign(payload)
    return f"{TOKEN_PREFIX}{_encode(payload)}.{key_id}.{_encode(mac)}"


def open_token(keyring: Keyring, token: str, now: float) -> StreamGrant:
    """Return the grant of a token. Raise Unauthorized if the token is not valid or has expired."""
    parts = token.removeprefix(TOKEN_PREFIX).split(".")
    if not token.startswith(TOKEN_PREFIX) or len(parts) != 3 or len(token) > _MAX_CHARACTERS:
        raise Unauthorized
    try:
        payload, mac = _decode(parts[0]), _decode(parts[2])
    except (binascii.Error, ValueError):
        raise Unauthorized from None
    if not keyring.verify(parts[1], payload, mac):
        raise Unauthorized
    key_id, tenant, scope, subject, expires_at = cast("list[Any]", orjson.loads(payload))
    if now >= expires_at:
        raise Unauthorized
    return StreamGrant(key_id, tenant, StreamScope(scope), subject, expires_at)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
