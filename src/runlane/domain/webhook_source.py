"""Sources of incoming webhooks: the sender, the verification of its requests, and the events that they become."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any, Final

from pydantic import Field

from runlane.domain.tenant_event import MAX_EVENT_NAME, RUN_EVENT, check_event_name
from runlane.domain.wire import Timestamp
from runlane.errors import InvalidRequest

MAX_SOURCES: Final = 100
MAX_HOOK_BYTES: Final = 1024 * 1024
RATE_BOUNDS: Final = (1, 100_000)
DEFAULT_RATE: Final = 600
MAX_SECRET: Final = 4096
SOURCE_NAME: Final = r"^[a-z0-9][a-z0-9_-]{0,62}$"
_NAME: Final = re.compile(SOURCE_NAME)
_HEADER: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_TOKEN_PREFIX: Final = "whk_"  # noqa: S105 - the prefix of tokens, not one


class Verifier(StrEnum):
    """How the requests of a source are verified."""

    STANDARD = "standard"
    GITHUB = "github"
    STRIPE = "stripe"
    SLACK = "slack"
    HMAC = "hmac"
    BEARER = "bearer"


# The vendors create these secrets; for other verifiers a secret is created if none is given.
VENDORS: Final = frozenset({Verifier.GITHUB, Verifier.STRIPE, Verifier.SLACK})


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The headers in which a request of the verifiers `hmac` and `bearer` has its signature and its id."""

    header: Annotated[str, Field(description="For hmac: the header with the signature.")] = "X-Signature"
    prefix: Annotated[str, Field(description="For hmac: what precedes the signature, such as sha256=.")] = ""
    encoding: Annotated[str, Field(description="For hmac: hex or base64.")] = "hex"
    id_header: Annotated[str | None, Field(description="For hmac and bearer: the header with the sender's id.")] = None


@dataclass(frozen=True, slots=True)
class WebhookSource:
    """A source, without its secret and its token."""

    name: str
    tenant: str
    verifier: Verifier
    event: Annotated[str, Field(description="The beginning of the names of its events.")]
    options: SourceOptions
    enabled: bool
    rate_per_minute: int
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]
    updated_by: str


def check_source_name(name: str) -> str:
    """Return the name if it is valid for a source."""
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"{name[:64]!r} is not a valid name of a source. Use 1 to 63 of a-z, 0-9, '_' and '-', beginning with a "
            "letter or digit."
        )
    return name


def check_source(event: str, options: SourceOptions, rate_per_minute: int) -> None:
    """Raise InvalidRequest for settings of a source that are out of bounds."""
    check_event_name(event)
    if f"{event}." == RUN_EVENT or len(event) > MAX_EVENT_NAME // 2:
        raise InvalidRequest(f'"{event[:MAX_EVENT_NAME]}" cannot be the beginning of event names. Use another one.')
    for header in (options.header, options.id_header):
        if header is not None and _HEADER.fullmatch(header) is None:
            raise InvalidRequest(f"{header[:64]!r} is not a valid name of a header.")
    if options.encoding not in ("hex", "base64"):
        raise InvalidRequest(f'encoding={options.encoding!r} must be "hex" or "base64".')
    if len(options.prefix) > 64 or not options.prefix.isascii():
        raise InvalidRequest("prefix must have at most 64 ASCII characters.")
    if not RATE_BOUNDS[0] <= rate_per_minute <= RATE_BOUNDS[1]:
        raise InvalidRequest(
            f"rate_per_minute={rate_per_minute} must be between {RATE_BOUNDS[0]} and {RATE_BOUNDS[1]}."
        )


def new_token() -> str:
    """Return a new token for the URL of a source."""
    return _TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """Return the stored hash of a token. A fast one is enough, because a token cannot be guessed."""
    return sha256(token.encode()).hexdigest()


def event_name(prefix: str, kind: Any) -> str:
    """Return the name of an event: the source's prefix, and the sender's type of it if that is a valid name."""
    if not isinstance(kind, str):
        return prefix
    name = f"{prefix}.{kind.replace(':', '.').replace('/', '.')}"
    try:
        return check_event_name(name)
    except InvalidRequest:
        return prefix
