"""Webhook endpoints, deliveries and replays."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import Key, Moment, Name, RequestModel, ResponseModel
from runlane.api.schemas.listing import Listing
from runlane.domain.webhook import (
    DEFAULT_OVERLAP_HOURS,
    IN_FLIGHT_BOUNDS,
    MAX_DESCRIPTION,
    MAX_FILTER_VALUES,
    MAX_OVERLAP_HOURS,
    MAX_TRIES,
    MAX_URL,
    RATE_BOUNDS,
    DeliveryStatus,
    Included,
    SignatureKind,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookKey,
    WebhookSecret,
)
from runlane.webhooks.headers import MAX_HEADERS, MAX_VALUE

_TypeNames = Annotated[list[Name], Field(max_length=50, description="Types of messages; empty for all.")]
_Filter = Annotated[
    dict[Literal["target", "lane", "tag"], Annotated[list[Name], Field(min_length=1, max_length=MAX_FILTER_VALUES)]],
    Field(description="Only messages with one of these values."),
]
_Include = Annotated[
    list[Included], Field(max_length=2, description="Values that messages about ended runs include, up to 64 kB each.")
]
_Headers = Annotated[
    dict[Name, Annotated[str, Field(max_length=MAX_VALUE)]],
    Field(max_length=MAX_HEADERS, description="Sent with every message. Secrets as {secret.NAME}."),
]
_Url = Annotated[Key, Field(max_length=MAX_URL, description="https, on a public host.")]
_Rate = Annotated[float, Field(ge=RATE_BOUNDS[0], le=RATE_BOUNDS[1], description="Deliveries per second.")]
_InFlight = Annotated[int, Field(ge=IN_FLIGHT_BOUNDS[0], le=IN_FLIGHT_BOUNDS[1], description="Deliveries at once.")]
_Description = Annotated[str, Field(max_length=MAX_DESCRIPTION)]
_EXAMPLE: Any = {"url": "https://example.com/hooks/runlane", "types": ["run.completed", "run.failed"]}


class NewEndpoint(RequestModel):
    """A webhook endpoint to create."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    url: _Url
    description: _Description | None = None
    types: _TypeNames | None = None
    filter: _Filter | None = None
    include: _Include | None = None
    headers: _Headers | None = None
    rate_per_second: _Rate | None = None
    max_in_flight: _InFlight | None = None
    ordered: bool | None = Field(default=None, description="Messages of one run one at a time, in order.")
    signature: SignatureKind = Field(default="hmac", description="`hmac` or `ed25519`.")
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )


class PatchEndpoint(RequestModel):
    """The changes of an endpoint."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"types": ["run.failed"], "version": 1}]})

    url: _Url | None = None
    description: _Description | None = None
    types: _TypeNames | None = None
    filter: _Filter | None = None
    include: _Include | None = None
    headers: _Headers | None = None
    rate_per_second: _Rate | None = None
    max_in_flight: _InFlight | None = None
    ordered: bool | None = None
    version: int | None = Field(default=None, ge=1, description="Refuse the change if the version differs.")


class EnableEndpoint(RequestModel):
    """What to do with the messages that were held while the endpoint was disabled."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"held": "send"}]})

    held: Literal["send", "discard"] = Field(description="`send` or `discard` them.")


class DisableEndpoint(RequestModel):
    """The reason why the endpoint is disabled."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "maintenance"}]})

    reason: Name = "disabled by an operator"


class RotateSecret(RequestModel):
    """Replace the secret of an endpoint."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"overlap_hours": 24}]})

    overlap_hours: float = Field(
        default=DEFAULT_OVERLAP_HOURS,
        ge=0,
        le=MAX_OVERLAP_HOURS,
        description="How long messages also have the signature of the previous secret.",
    )


class RotateDefaultSecret(RotateSecret):
    """Create or replace the secret that signs the webhooks of runs without their own secret."""

    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )


class ReplayDelivery(RequestModel):
    """Send the message of a delivery again."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}]})

    max_tries: int = Field(default=1, ge=1, le=MAX_TRIES)


class ReplayDeliveries(RequestModel):
    """The messages to send again. Default: those that failed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"since": "2026-01-31T12:00:00Z"}]})

    endpoint_id: Key | None = None
    status: DeliveryStatus = Field(default=DeliveryStatus.FAILED, strict=False)
    type: Name | None = None
    run_id: Key | None = None
    since: Moment | None = Field(default=None, description="Only deliveries created at this time or later.")
    before: Key | None = Field(default=None, description="`before` of the previous response, to continue.")
    max_tries: int = Field(default=1, ge=1, le=MAX_TRIES)
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )


class CreatedEndpoint(ResponseModel):
    """A new endpoint and its secret. Only this response contains the secret."""

    endpoint: WebhookEndpoint
    secret: WebhookSecret | None


class EnabledEndpoint(ResponseModel):
    """An enabled endpoint, and the number of held messages that were sent or discarded."""

    endpoint: WebhookEndpoint
    held: Literal["send", "discard"]
    deliveries: int


class EventTypeView(ResponseModel):
    """A type of messages."""

    type: str
    description: str
    json_schema: dict[str, Any] = Field(alias="schema")
    example: dict[str, Any]


class EventTypeList(ResponseModel):
    """Every type of messages."""

    event_types: list[EventTypeView]


ENDPOINTS = Listing("endpoints", WebhookEndpoint, cursor="id")
DELIVERIES = Listing("deliveries", WebhookDelivery, cursor="id")
WEBHOOK_KEYS = Listing("webhook_keys", WebhookKey)
