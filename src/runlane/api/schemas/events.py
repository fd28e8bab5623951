"""Events of tenants, the outcomes of triggers, and replays."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from runlane.api.schemas.fields import Key, Moment, Name, RequestModel, ResponseModel
from runlane.api.schemas.listing import Listing
from runlane.domain.tenant_event import (
    MAX_EVENT_NAME,
    MAX_EVENTS,
    MAX_SENT_ID,
    EventReceipt,
    TenantEvent,
    TriggerOutcome,
)
from runlane.triggers.replay import MAX_REPLAYED


class EventBody(RequestModel):
    """One event."""

    name: str = Field(max_length=MAX_EVENT_NAME, description="The name of the event: words separated by dots.")
    data: Any = Field(default=None, description="The data of the event; triggers read it as `event.data`.")
    id: Key | None = Field(
        default=None,
        max_length=MAX_SENT_ID,
        description="The sender's id. Further events with this id are not stored, by default for 24 hours.",
    )
    key: Key | None = Field(default=None, max_length=MAX_SENT_ID, description="The subject, such as a customer.")


class SendEvents(RequestModel):
    """Events for the triggers and waiting runs of a tenant: all are stored, or none."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"events": [{"name": "order.paid", "data": {"order": 7}, "id": "evt-1", "key": "customer-7"}]}]
        }
    )

    events: list[EventBody] = Field(min_length=1, max_length=MAX_EVENTS)
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )


class EventsSent(ResponseModel):
    """The stored events, in the order of the request."""

    events: list[EventReceipt]


class ReplayRequest(RequestModel):
    """The stored events to evaluate for a trigger. Events that started a run for it are skipped."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"from": "2026-01-31T12:00:00Z", "dry_run": True}]}, populate_by_name=True
    )

    since: Moment = Field(alias="from", description="Events received from this time on.")
    until: Moment | None = Field(default=None, description="Events received before this time.")
    after: Name | None = Field(default=None, description="`next_cursor` of the previous request.")
    limit: int = Field(default=MAX_REPLAYED, ge=1, le=MAX_REPLAYED, description="The maximum number of events to read.")
    dry_run: bool = Field(default=False, description="Only report which events would be evaluated.")
    tenant: Name | None = Field(
        default=None, description="The tenant, for platform admins. Other keys use their own tenant."
    )


EVENTS = Listing("events", TenantEvent, cursor="id")
EVENT_OUTCOMES = Listing("outcomes", TriggerOutcome)
TRIGGER_OUTCOMES = Listing("outcomes", TriggerOutcome, cursor="event_id")
