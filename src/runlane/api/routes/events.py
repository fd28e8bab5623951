"""Events of tenants: send and list them, read the outcomes of their triggers, and replay them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from runlane.access.policy import tenant_to_use
from runlane.api.auth import EventsWrite, RunsRead
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.schemas.events import (
    EVENT_OUTCOMES,
    EVENTS,
    TRIGGER_OUTCOMES,
    EventsSent,
    ReplayRequest,
    SendEvents,
)
from runlane.api.schemas.fields import MAX_PAGE, Key, Name, moment_us
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.domain.maintenance import MaintenanceService
from runlane.domain.tenant_event import Outcome, TenantEvent, TriggerReplay
from runlane.domain.wire import to_dict
from runlane.store.events.reading import find_event, list_events, outcomes_of_event, outcomes_of_trigger
from runlane.triggers.replay import replay_trigger

router = RawRouter(tags=["events"])
changes = RawRouter(tags=["events"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

Tenant = Annotated[Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")]
Cursor = Annotated[Name | None, Query(description="`next_cursor` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
EventId = Annotated[str, Path(description="The event's id.", examples=["evt_0192f3a1b2c37abc8def0123456789ab"])]
TriggerName = Annotated[str, Path(description="The trigger's id.", examples=["on-paid"])]


@changes.post("/events", status_code=202, response_model=EventsSent, responses=answers(404, 409, 413, 429))
async def post_events(request: Request, principal: EventsWrite, body: SendEvents) -> JsonBody:
    """Store events. When the response is sent, they are stored, and every trigger for them will be evaluated."""
    events = [{"name": event.name, "data": event.data, "id": event.id, "key": event.key} for event in body.events]
    tenant = tenant_to_use(principal, body.tenant)
    receipts = await parts_of(request).app.broadcast_many(events, tenant=tenant)
    return JsonBody({"events": [to_dict(receipt) for receipt in receipts]}, 202)


@router.get("/events", response_model=EVENTS.schema, responses=answers(404))
async def get_events(
    request: Request,
    principal: RunsRead,
    name: Annotated[Name | None, Query(description="Only events of this name.")] = None,
    key: Annotated[Key | None, Query(description="Only events with this key.")] = None,
    tenant: Tenant = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> JsonBody:
    """List the stored events of a tenant, newest first. A page ends before its limit where it would exceed 16 MiB."""
    owner = tenant_to_use(principal, tenant)
    found, more = await list_events(parts_of(request).database, owner, name=name, key=key, before=cursor, limit=limit)
    return EVENTS.page(found, limit, more=more)


@router.get("/events/{event_id}", response_model=TenantEvent, responses=answers(404))
async def get_event(request: Request, principal: RunsRead, event_id: EventId, tenant: Tenant = None) -> ValueBody:
    """Return a stored event."""
    owner = tenant_to_use(principal, tenant)
    return ValueBody(await find_event(parts_of(request).database, owner, event_id.replace("\0", "")))


@router.get("/events/{event_id}/outcomes", response_model=EVENT_OUTCOMES.schema, responses=answers(404))
async def get_event_outcomes(
    request: Request, principal: RunsRead, event_id: EventId, tenant: Tenant = None
) -> JsonBody:
    """List the outcomes of an event by trigger: a run, the reason why no run started, or pending."""
    owner = tenant_to_use(principal, tenant)
    return EVENT_OUTCOMES.all(await outcomes_of_event(parts_of(request).database, owner, event_id.replace("\0", "")))


@router.get("/triggers/{name}/outcomes", response_model=TRIGGER_OUTCOMES.schema, responses=answers(404))
async def get_trigger_outcomes(
    request: Request,
    principal: RunsRead,
    name: TriggerName,
    outcome: Annotated[Outcome | None, Query(description="Only outcomes of this kind.")] = None,
    tenant: Tenant = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> JsonBody:
    """List the outcomes of a trigger, newest event first, even if the trigger was removed."""
    owner = tenant_to_use(principal, tenant)
    found = await outcomes_of_trigger(
        parts_of(request).database, owner, name.replace("\0", ""), outcome=outcome, before=cursor, limit=limit
    )
    return TRIGGER_OUTCOMES.page(found, limit)


@changes.post("/triggers/{name}/replay", response_model=TriggerReplay, responses=answers(404, 409))
async def post_replay(request: Request, principal: EventsWrite, name: TriggerName, body: ReplayRequest) -> ValueBody:
    """Evaluate stored events for a trigger, except events that already started a run.

    With `dry_run`, only list them.
    """
    connection = parts_of(request).connection
    found = await replay_trigger(
        connection.database,
        tenant_to_use(principal, body.tenant),
        name.replace("\0", ""),
        from_us=moment_us(body.since),
        until_us=None if body.until is None else moment_us(body.until),
        after=body.after,
        limit=body.limit,
        dry_run=body.dry_run,
        actor=principal.actor,
    )
    connection.bus.report_work({MaintenanceService.TRIGGERS})
    return ValueBody(found)
