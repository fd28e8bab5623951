"""Webhooks: endpoints, deliveries and attempts as readers see them, and the rules of tries, circuits and health."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, cast
from urllib.parse import urlsplit

from pydantic import Field, computed_field, with_config

from runlane.domain.ids import lock_key
from runlane.domain.wire import WIRE, Duration, Timestamp
from runlane.errors import InvalidRequest

_DAY_US: Final = 86_400 * 1_000_000
_SECOND_US: Final = 1_000_000

MAX_URL: Final = 2000
MAX_DESCRIPTION: Final = 500
MAX_FILTER_VALUES: Final = 50
RATE_BOUNDS: Final = (0.01, 1000.0)
IN_FLIGHT_BOUNDS: Final = (1, 100)
DEFAULT_RATE: Final = 10.0
DEFAULT_IN_FLIGHT: Final = 4
MAX_OVERLAP_HOURS: Final = 7 * 24
DEFAULT_OVERLAP_HOURS: Final = 24.0
# The maximum size of an included input or result; a larger one is replaced by its address.
MAX_INCLUDED_BYTES: Final = 64 * 1024
# The maximum number of bytes of a response that are read, and that are kept with the attempt.
MAX_RESPONSE_BYTES: Final = 64 * 1024
KEPT_RESPONSE_CHARACTERS: Final = 2048

# Seconds before each further try: ten tries within 76 hours.
DELAYS_SECONDS: Final = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
MAX_TRIES: Final = len(DELAYS_SECONDS) + 1
JITTER: Final = 0.2
MAX_RETRY_AFTER_SECONDS: Final = 3600.0

CIRCUIT_FAILURES: Final = 20
_PROBE_SECONDS: Final = 15.0
_MAX_PROBE_SECONDS: Final = 300.0
DISABLE_AFTER_US: Final = 5 * _DAY_US
DISABLE_MESSAGES: Final = 20

Included = Literal["input", "result"]
SignatureKind = Literal["hmac", "ed25519"]
INCLUDED: Final[tuple[Included, ...]] = ("input", "result")
SIGNATURES: Final[tuple[SignatureKind, ...]] = ("hmac", "ed25519")
FILTERS: Final = ("target", "lane", "tag")


class DeliveryStatus(StrEnum):
    """The status of a delivery."""

    PENDING = "pending"
    DELIVERING = "delivering"
    HELD = "held"
    DELIVERED = "delivered"
    FAILED = "failed"
    DISCARDED = "discarded"


class ErrorKind(StrEnum):
    """The reason why a try failed."""

    STATUS = "status"
    REDIRECT = "redirect"
    GONE = "gone"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    INVALID = "invalid_response"
    SECRET = "secret"  # noqa: S105 - the name of an error
    HEADER = "header"


@dataclass(frozen=True, slots=True)
class RecentDeliveries:
    """The outcomes of the latest 100 messages of an endpoint, without replays and tests; others are not decided yet."""

    delivered: int
    failed: int


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    """An endpoint that receives the messages of a tenant."""

    id: str
    tenant: str
    url: Annotated[str, Field(description="Keys without webhooks:write see only the origin.")]
    description: str
    types: Annotated[tuple[str, ...], Field(description="The types of messages that it receives; empty for all.")]
    filter: Annotated[
        Mapping[str, tuple[str, ...]],
        Field(description="Values of `target`, `lane` and `tag`; a message must have one of each that is named."),
    ]
    include: Annotated[
        tuple[str, ...], Field(description="The fields that messages about ended runs include: `input`, `result`.")
    ]
    headers: Annotated[
        Mapping[str, str],
        Field(description="Sent with every message; secrets as {secret.NAME}. Names alone without webhooks:write."),
    ]
    signature: Annotated[SignatureKind, Field(description="`hmac` (v1) or `ed25519` (v1a).")]
    rate_per_second: float
    max_in_flight: int
    ordered: Annotated[bool, Field(description="Messages of one run are delivered one at a time, in order.")]
    enabled: bool
    disabled_reason: str | None
    disabled_at_us: Annotated[Timestamp | None, Field(alias="disabled_at")]
    failures: Annotated[int, Field(alias="consecutive_failures")]
    first_failure_at_us: Annotated[Timestamp | None, Field(alias="first_failure_at")]
    last_success_at_us: Annotated[Timestamp | None, Field(alias="last_success_at")]
    version: int
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]
    recent: Annotated[RecentDeliveries | None, Field(description="Null in responses to changes.")] = None

    @computed_field(
        description="`healthy`, `degraded`, `failing` (20 failures in a row: one probe at a time), `disabled`."
    )
    @property
    def health(self) -> str:
        """Return its health in one word."""
        if not self.enabled:
            return "disabled"
        if self.failures >= CIRCUIT_FAILURES:
            return "failing"
        return "degraded" if self.failures else "healthy"


@dataclass(frozen=True, slots=True)
class WebhookSecret:
    """The secret of an endpoint, which verifies its messages, or the one of a tenant for the webhooks of its runs."""

    endpoint_id: Annotated[str | None, Field(description="Null for the default secret of a tenant.")]
    version: int
    secret: Annotated[str | None, Field(description="`whsec_` and base64. Null for ed25519, whose key stays here.")]
    public_key: Annotated[str | None, Field(description="Of ed25519: `whpk_` and base64.")]
    previous_valid_until_us: Annotated[
        Timestamp | None,
        Field(
            alias="previous_valid_until", description="Until then, messages are also signed with the previous secret."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class WebhookKey:
    """A public key that verifies the messages of an endpoint."""

    endpoint_id: str
    version: int
    public_key: str
    valid_until_us: Annotated[Timestamp | None, Field(alias="valid_until")]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class WebhookAttempt:
    """One try of a delivery."""

    number: int
    started_at_us: Annotated[Timestamp, Field(alias="started_at")]
    duration_us: Annotated[Duration, Field(alias="duration_seconds")]
    status_code: int | None
    error_kind: str | None
    error: str | None
    response_headers: Mapping[str, str] | None
    response_body: Annotated[str | None, Field(description="Its first 2,048 characters.")]
    address: Annotated[str | None, Field(description="The address that was connected to.")]
    request_headers: Annotated[
        Mapping[str, str] | None, Field(description="The endpoint's own headers, with {secret.NAME} for secrets.")
    ] = None


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """A message for one endpoint."""

    id: str
    message_id: Annotated[str, Field(description="Sent as `webhook-id`; replays have the same.")]
    endpoint_id: Annotated[str, Field(description="`we_…`, or `wer_…` for the webhook URL of a run.")]
    tenant: str
    type: str
    run_id: str | None
    status: Annotated[
        DeliveryStatus, Field(description="`held`: its endpoint is disabled; it is sent or discarded when that ends.")
    ]
    tries: int
    max_tries: int
    next_at_us: Annotated[
        Timestamp | None,
        Field(alias="next_at", description="The time of the next attempt, or the deadline of the current one."),
    ]
    replay_of: str | None
    status_code: Annotated[int | None, Field(description="The response of the latest attempt.")]
    error: Annotated[str | None, Field(description="The error of the latest attempt.")]
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    ended_at_us: Annotated[Timestamp | None, Field(alias="ended_at")]


@with_config(WIRE)
@dataclass(frozen=True, slots=True)
class WebhookDeliveryLog(WebhookDelivery):
    """A delivery with the body that is sent, and its tries in order."""

    body: Annotated[str, Field(description="Exactly the bytes that are signed and sent.")] = ""
    attempts: tuple[WebhookAttempt, ...] = ()


@dataclass(frozen=True, slots=True)
class WebhookReplay:
    """The result of a replay of many deliveries."""

    replayed: int
    more: Annotated[bool, Field(description="More deliveries match; repeat the request with `before`.")]
    before: Annotated[str | None, Field(description="The oldest replayed delivery.")]


@dataclass(frozen=True, slots=True)
class EndpointHealth:
    """The facts that decide whether an endpoint is served, probed or disabled."""

    failures: int
    failed_messages: int
    first_failure_at_us: int | None
    last_success_at_us: int | None
    probe_at_us: int | None

    def succeeded(self, now_us: int) -> EndpointHealth:
        """Return the health after a success."""
        return EndpointHealth(0, 0, None, now_us, None)

    def failed(self, now_us: int, *, first_try: bool) -> EndpointHealth:
        """Return the health after a failed try; messages are counted by their first."""
        failures = self.failures + 1
        probe_us = None
        if failures >= CIRCUIT_FAILURES:
            seconds = min(_MAX_PROBE_SECONDS, _PROBE_SECONDS * 2 ** min(failures - CIRCUIT_FAILURES, 10))
            probe_us = now_us + int(seconds * _SECOND_US)
        first = now_us if self.first_failure_at_us is None else self.first_failure_at_us
        return replace(
            self,
            failures=failures,
            failed_messages=self.failed_messages + (1 if first_try else 0),
            first_failure_at_us=first,
            probe_at_us=probe_us,
        )

    def must_disable(self, now_us: int) -> bool:
        """Return whether it has failed for so long that it is disabled."""
        first = self.first_failure_at_us
        return first is not None and now_us - first >= DISABLE_AFTER_US and self.failed_messages >= DISABLE_MESSAGES


def retry_delay_us(tries: int, max_tries: int, jitter: float, retry_after_seconds: float | None) -> int | None:
    """Return the wait after this many failed tries; None after the last. `jitter` in [0, 1) spreads it by 20 %."""
    if tries >= max_tries:
        return None
    seconds = DELAYS_SECONDS[min(tries, len(DELAYS_SECONDS)) - 1] * (1 - JITTER + 2 * JITTER * jitter)
    if retry_after_seconds is not None:
        seconds = max(seconds, min(retry_after_seconds, MAX_RETRY_AFTER_SECONDS))
    return int(seconds * _SECOND_US)


def allowance(rate_per_second: float, paid_until_us: int, now_us: int) -> int:
    """Return how many deliveries the rate allows now: at most those of one second, or one if the rate is lower."""
    each_us = _SECOND_US / rate_per_second
    room_us = max(_SECOND_US, math.ceil(each_us))
    return max(0, math.floor((now_us + room_us - max(now_us, paid_until_us)) / each_us))


def rate_wait_us(rate_per_second: float, paid_until_us: int, now_us: int) -> int:
    """Return how long after now the rate allows the next delivery; at most 0 if it does now."""
    each_us = _SECOND_US / rate_per_second
    room_us = max(_SECOND_US, math.ceil(each_us))
    return math.ceil(max(now_us, paid_until_us) + each_us - room_us) - now_us


def paid_until(rate_per_second: float, paid_until_us: int, now_us: int, count: int) -> int:
    """Return the time up to which this many more deliveries use the rate."""
    return max(now_us, paid_until_us) + math.ceil(count * _SECOND_US / rate_per_second)


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2].lower()}"


def origin_id(tenant: str, url: str) -> str:
    """Return the id under which the webhook URLs of a tenant's runs at one origin share their rate and circuit."""
    number = lock_key("webhook origin", tenant, origin_of(url))
    return f"wer_{number & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def check_url(url: str) -> str:
    """Return the URL if a webhook can have it. Whether its address may be called is checked by each delivery."""
    if not isinstance(cast("object", url), str):
        raise InvalidRequest("The webhook URL must be a string.")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidRequest("The webhook URL cannot be parsed. Write it as https://host/path.") from None
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise InvalidRequest("The webhook URL must begin with https:// and name a host.")
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest("The webhook URL contains a user or a password. Verify the signature instead.")
    if len(url) > MAX_URL or any(ord(character) < 33 or ord(character) == 127 for character in url):
        raise InvalidRequest(f"The webhook URL must have at most {MAX_URL} characters, without spaces.")
    return url


def check_rates(rate_per_second: float | None, max_in_flight: int | None) -> None:
    """Raise InvalidRequest if one of them is out of its bounds."""
    if rate_per_second is not None and not RATE_BOUNDS[0] <= rate_per_second <= RATE_BOUNDS[1]:
        raise InvalidRequest(
            f"rate_per_second={rate_per_second} must be between {RATE_BOUNDS[0]} and {RATE_BOUNDS[1]:g}."
        )
    if max_in_flight is not None and not IN_FLIGHT_BOUNDS[0] <= max_in_flight <= IN_FLIGHT_BOUNDS[1]:
        raise InvalidRequest(
            f"max_in_flight={max_in_flight} must be between {IN_FLIGHT_BOUNDS[0]} and {IN_FLIGHT_BOUNDS[1]}."
        )


def check_filter(given: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the filter of an endpoint if its names and values are valid."""
    checked: dict[str, list[str]] = {}
    for name, values in given.items():
        if name not in FILTERS:
            raise InvalidRequest(f'"{name}" is not a filter of webhooks. Filters: {", ".join(FILTERS)}.')
        listed = [values] if isinstance(values, str) else list(values)
        if not 0 < len(listed) <= MAX_FILTER_VALUES or not all(
            isinstance(value, str) and 0 < len(value) <= 200 for value in listed
        ):
            raise InvalidRequest(
                f"The filter {name} must have 1 to {MAX_FILTER_VALUES} strings of 1 to 200 characters."
            )
        checked[name] = listed
    return checked


def filter_matches(wanted: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    """Return whether a message with this data passes the filter of an endpoint."""
    for name, values in wanted.items():
        if name == "tag":
            if not set(values) & set(data.get("tags") or ()):
                return False
        elif data.get(name) not in values:
            return False
    return True
