"""Lanes and workers: list them, and change lanes while runs execute."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request

from runlane.access.policy import require_platform
from runlane.api.auth import WorkersManage, WorkersView
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.schemas.lanes import LANES, WORKERS, LaneChanged, PatchLane
from runlane.api.serializers import JsonBody
from runlane.api.services import Services, parts_of
from runlane.domain.access import Principal
from runlane.domain.lane import DEFAULT_LANE, Lane
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest, UnknownLane
from runlane.store.queue.lanes import list_lanes, set_lane
from runlane.store.queue.overview import count_by_worker, list_tenant_lanes
from runlane.store.queue.workers import list_workers

router = RawRouter(tags=["lanes and workers"])
changes = RawRouter(tags=["lanes and workers"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

LaneName = Annotated[str, Path(description="The lane's name.", examples=["default"])]


@router.get("/workers", response_model=WORKERS.schema, responses=answers())
async def get_workers(
    request: Request,
    principal: WorkersView,
    gone: Annotated[bool, Query(description="Include workers that ended recently.")] = False,
) -> JsonBody:
    """List the workers, newest first. A tenant sees neither their hosts nor their runs of other tenants."""
    database = parts_of(request).database
    rows = await list_workers(database, gone_too=gone)
    if principal.everywhere:
        return WORKERS.all(rows)
    own = await count_by_worker(database, principal.tenant)
    return WORKERS.all([row.without_process(own.get(row.id, 0)) for row in rows])


@router.get("/lanes", response_model=LANES.schema, responses=answers())
async def get_lanes(request: Request, principal: WorkersView) -> JsonBody:
    """List the lanes with their running and queued runs. A tenant sees its own counts and lanes."""
    return JsonBody(await shown_lanes(parts_of(request), principal))


@router.get("/lanes/{name}", response_model=Lane, responses=answers(404))
async def get_lane(request: Request, principal: WorkersView, name: LaneName) -> JsonBody:
    """Return a lane."""
    return JsonBody(shown_lane(principal, await find_lane(parts_of(request), principal, name)))


@changes.patch("/lanes/{name}", response_model=LaneChanged, responses=answers(404, 409))
async def patch_lane(request: Request, principal: WorkersManage, name: LaneName, body: PatchLane) -> JsonBody:
    """Change a lane. When the response is sent, no claim under the old settings is in progress."""
    return JsonBody(await change_lane(parts_of(request), principal, name, body))


def common_lanes(parts: Services) -> set[str]:
    """Return the lanes that every tenant sees: the default lane, and the lanes of the app's tasks."""
    return {DEFAULT_LANE, *(task.lane for task in parts.app.tasks.values())}


async def shown_lanes(parts: Services, principal: Principal) -> dict[str, Any]:
    """Return the lanes that the principal sees, as JSON."""
    return {"lanes": [shown_lane(principal, lane) for lane in await _lanes(parts, principal)]}


async def _lanes(parts: Services, principal: Principal) -> list[Lane]:
    if principal.everywhere:
        return await list_lanes(parts.database)
    return await list_tenant_lanes(parts.database, principal.tenant, common_lanes(parts))


def shown_lane(principal: Principal, lane: Lane) -> dict[str, Any]:
    """Return a lane as JSON with the fields that the principal may see."""
    # The number of free slots would disclose the use by other tenants, and the reasons of holds may mention it.
    return to_dict(lane) if principal.everywhere else to_dict(lane) | {"slots_available": None, "holds": []}


async def find_lane(parts: Services, principal: Principal, name: str) -> Lane:
    """Return the lane with this name. Raise UnknownLane if the principal may not see it."""
    lanes = await _lanes(parts, principal)
    for lane in lanes:
        if lane.name == name:
            return lane
    raise UnknownLane(name, [lane.name for lane in lanes])


async def change_lane(parts: Services, principal: Principal, name: str, body: PatchLane) -> dict[str, Any]:
    """Change a lane. Return the lane and the names of the changed fields."""
    require_platform(principal)
    if not body.model_fields_set:
        raise InvalidRequest("Nothing to change: give a setting, such as enabled or max_slots.")
    await find_lane(parts, principal, name)
    old, new = await set_lane(parts.database, name, body.change(), actor=principal.actor)
    changed = {
        field: {"old": None if old is None else old[field], "new": value}
        for field, value in new.items()
        if old is None or old[field] != value
    }
    parts.connection.bus.ring([name])
    return {"lane": shown_lane(principal, await find_lane(parts, principal, name)), "changed": changed}
