"""Schedules: create, change, pause, trigger and backfill them, and read their slots and firings."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Header, Path, Query, Request
from pydantic import BaseModel

from runlane.access.policy import tenant_to_use
from runlane.api.auth import RunsRead, SchedulesWrite
from runlane.api.body import LargeBodyRoute
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.schemas.fields import MAX_PAGE, Moment, Name, moment_us
from runlane.api.schemas.schedules import (
    SCHEDULES,
    BackfillSchedule,
    FiringPage,
    PatchSchedule,
    PauseSchedule,
    PreviewSchedule,
    PutSchedule,
    ResumedSchedule,
    ResumeSchedule,
    TriggerSchedule,
    UpcomingSlots,
)
from runlane.api.serializers import JsonBody, ValueBody, moment
from runlane.api.services import parts_of
from runlane.domain.firing import Firing
from runlane.domain.schedule import Backfill, Schedule, SchedulePreview
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest
from runlane.submit.schedules import MAX_LATEST, MAX_UPCOMING, Schedules

router = RawRouter(tags=["schedules"], route_class=LargeBodyRoute)
changes = RawRouter(tags=["schedules"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

ScheduleId = Annotated[Name, Path(description="The schedule's id.", examples=["nightly-report"])]
Tenant = Annotated[Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")]
IfMatch = Annotated[
    str | None,
    Header(max_length=40, description="The version that the caller has read; 412 if it changed.", examples=["3"]),
]


@router.get("/schedules", response_model=SCHEDULES.schema, responses=answers(404))
async def get_schedules(
    request: Request,
    principal: RunsRead,
    tenant: Tenant = None,
    cursor: Annotated[Name | None, Query(description="`next_cursor` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    firings: Annotated[
        int, Query(ge=0, le=MAX_LATEST, description="The number of latest firings that each schedule includes.")
    ] = 0,
) -> JsonBody:
    """List the schedules of a tenant by id."""
    owner = tenant_to_use(principal, tenant)
    found = await (await _verbs(request)).list(owner, after=cursor, limit=limit, firings=firings)
    return SCHEDULES.page(found, limit)


@changes.post("/schedules", status_code=201, response_model=Schedule, responses=answers(404, 409, 413, 429))
async def post_schedule(
    request: Request, principal: SchedulesWrite, body: PutSchedule, tenant: Tenant = None
) -> ValueBody:
    """Create a schedule. `warnings` in the response list unexpected effects of the settings."""
    owner = tenant_to_use(principal, tenant)
    created = await (await _verbs(request)).create(owner, body, actor=principal.actor)
    return _versioned(created, 201)


@router.post("/schedules/preview", response_model=SchedulePreview, responses=answers(404))
async def preview_schedule(
    request: Request, principal: RunsRead, body: PreviewSchedule, tenant: Tenant = None
) -> ValueBody:
    """Return a description of times in words and their next slots. Nothing is stored."""
    owner = tenant_to_use(principal, tenant)
    return ValueBody(await (await _verbs(request)).preview(owner, body.timing(), body.count))


@router.get("/schedules/{schedule_id}", response_model=Schedule, responses=answers(404))
async def get_schedule(
    request: Request, principal: RunsRead, schedule_id: ScheduleId, tenant: Tenant = None
) -> ValueBody:
    """Return a schedule. The header ETag contains its version."""
    return _versioned(await (await _verbs(request)).get(tenant_to_use(principal, tenant), schedule_id))


@changes.put("/schedules/{schedule_id}", response_model=Schedule, responses=answers(404, 409, 412, 413))
async def put_schedule(
    request: Request,
    principal: SchedulesWrite,
    schedule_id: ScheduleId,
    body: PutSchedule,
    if_match: IfMatch = None,
    tenant: Tenant = None,
) -> ValueBody:
    """Replace the settings of a schedule. Slots of the new times begin after the change."""
    if body.id != schedule_id:
        raise InvalidRequest(f'id="{body.id}" differs from the path, which names "{schedule_id}". Use the same id.')
    owner = tenant_to_use(principal, tenant)
    changed = await (await _verbs(request)).put(owner, body, actor=principal.actor, version=_version(if_match))
    return _versioned(changed)


@changes.patch("/schedules/{schedule_id}", response_model=Schedule, responses=answers(404, 409, 412, 413))
async def patch_schedule(
    request: Request,
    principal: SchedulesWrite,
    schedule_id: ScheduleId,
    body: PatchSchedule,  # type: ignore[valid-type]
    if_match: IfMatch = None,
    tenant: Tenant = None,
) -> ValueBody:
    """Change some settings of a schedule."""
    fields = cast("BaseModel", body).model_dump(mode="json", exclude_unset=True)
    if not fields:
        raise InvalidRequest("Nothing to change: give at least one setting.")
    owner = tenant_to_use(principal, tenant)
    changed = await (await _verbs(request)).patch(
        owner, schedule_id, fields, actor=principal.actor, version=_version(if_match)
    )
    return _versioned(changed)


@changes.delete("/schedules/{schedule_id}", response_model=Schedule, responses=answers(404, 409, 412))
async def remove_schedule(
    request: Request,
    principal: SchedulesWrite,
    schedule_id: ScheduleId,
    if_match: IfMatch = None,
    tenant: Tenant = None,
) -> ValueBody:
    """Delete a schedule and its firings. Its runs are kept."""
    owner = tenant_to_use(principal, tenant)
    verbs = await _verbs(request)
    return ValueBody(await verbs.delete(owner, schedule_id, actor=principal.actor, version=_version(if_match)))


@changes.post("/schedules/{schedule_id}/pause", response_model=Schedule, responses=answers(404, 409))
async def pause_schedule(
    request: Request, principal: SchedulesWrite, schedule_id: ScheduleId, body: PauseSchedule, tenant: Tenant = None
) -> ValueBody:
    """Pause a schedule: no slot starts a run until it is resumed. Runs that have started continue."""
    owner = tenant_to_use(principal, tenant)
    return _versioned(await (await _verbs(request)).pause(owner, schedule_id, body.reason, actor=principal.actor))


@changes.post("/schedules/{schedule_id}/resume", response_model=ResumedSchedule, responses=answers(404, 409))
async def resume_schedule(
    request: Request, principal: SchedulesWrite, schedule_id: ScheduleId, body: ResumeSchedule, tenant: Tenant = None
) -> JsonBody:
    """Resume a schedule. Slots during the pause are recorded as missed unless `catch_up` starts them."""
    owner = tenant_to_use(principal, tenant)
    resumed, firings = await (await _verbs(request)).resume(
        owner, schedule_id, actor=principal.actor, catch_up=body.catch_up
    )
    return JsonBody({"schedule": to_dict(resumed), "firings": [to_dict(firing) for firing in firings]})


@changes.post("/schedules/{schedule_id}/trigger", status_code=202, response_model=Firing, responses=answers(404, 409))
async def trigger_schedule(
    request: Request, principal: SchedulesWrite, schedule_id: ScheduleId, body: TriggerSchedule, tenant: Tenant = None
) -> ValueBody:
    """Start a run of a schedule now, even if it is paused.

    The response names the run, or the reason why none started.
    """
    owner = tenant_to_use(principal, tenant)
    firing = await (await _verbs(request)).trigger(
        owner, schedule_id, actor=principal.actor, input=body.input, overlap=body.overlap
    )
    return ValueBody(firing, 202)


@changes.post("/schedules/{schedule_id}/backfill", response_model=Backfill, responses=answers(404, 409))
async def backfill_schedule(
    request: Request, principal: SchedulesWrite, schedule_id: ScheduleId, body: BackfillSchedule, tenant: Tenant = None
) -> ValueBody:
    """Decide again about at most 1000 past slots that started no run."""
    owner = tenant_to_use(principal, tenant)
    done = await (await _verbs(request)).backfill(
        owner,
        schedule_id,
        body.from_at,
        body.to_at,
        actor=principal.actor,
        overlap=body.overlap,
        dry_run=body.dry_run,
    )
    return ValueBody(done)


@router.get("/schedules/{schedule_id}/next", response_model=UpcomingSlots, responses=answers(404))
async def get_next(
    request: Request,
    principal: RunsRead,
    schedule_id: ScheduleId,
    tenant: Tenant = None,
    count: Annotated[int, Query(ge=1, le=MAX_UPCOMING)] = 10,
) -> JsonBody:
    """Return the next slots of a schedule with their due times; none while it is paused."""
    found = await (await _verbs(request)).next(tenant_to_use(principal, tenant), schedule_id, count)
    return JsonBody({"schedule_id": schedule_id, "next": [to_dict(slot) for slot in found]})


@router.get("/schedules/{schedule_id}/firings", response_model=FiringPage, responses=answers(404))
async def get_firings(
    request: Request,
    principal: RunsRead,
    schedule_id: ScheduleId,
    tenant: Tenant = None,
    cursor: Annotated[Moment | None, Query(description="`next_cursor` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> JsonBody:
    """List the decisions about slots, newest first."""
    before_us = None if cursor is None else moment_us(cursor)
    owner = tenant_to_use(principal, tenant)
    found = await (await _verbs(request)).firings(owner, schedule_id, before_us=before_us, limit=limit)
    following = moment(found[-1].slot_us) if len(found) == limit else None
    return JsonBody({"firings": [to_dict(firing) for firing in found], "next_cursor": following})


async def _verbs(request: Request) -> Schedules:
    return await parts_of(request).app.schedules()


def _versioned(schedule: Schedule, status: int = 200) -> ValueBody:
    return ValueBody(schedule, status, {"ETag": f'"{schedule.version}"'})


def _version(if_match: str | None) -> int | None:
    if if_match is None or if_match == "*":
        return None
    text = if_match.removeprefix("W/").strip('"')
    if not text.isdecimal():
        raise InvalidRequest(f"If-Match={if_match!r} is not a version of a schedule. Send the number in its ETag.")
    return int(text)
