"""Administration of lanes for platform keys: create and delete lanes, assign kinds of runs, and hold lanes."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Path, Request

from runlane.access.policy import require_platform
from runlane.api.auth import WorkersManage
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.routes.lanes import LaneName, common_lanes, shown_lane
from runlane.api.schemas.lanes import HOLDS, AssignKinds, KindsAssigned, NewHold, NewLane
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import Services, parts_of
from runlane.domain.access import Principal
from runlane.domain.lane import Lane, LaneHold
from runlane.errors import Conflict, NotFound, UnknownLane
from runlane.store.queue.lane_holds import hold_lane, list_holds, release_hold
from runlane.store.queue.lanes import create_lane, delete_lane, list_lanes, move_kinds, unassign_kinds
from runlane.store.queue.overview import list_tenant_lanes

router = RawRouter(tags=["lanes and workers"])
changes = RawRouter(tags=["lanes and workers"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

Kind = Annotated[str, Path(description="A kind of runs: a task, or a definition with its prefix.", examples=["report"])]
HoldId = Annotated[str, Path(description="The id of the hold.")]


@changes.post("/lanes", status_code=201, response_model=Lane, responses=answers(409))
async def post_lane(request: Request, principal: WorkersManage, body: NewLane) -> JsonBody:
    """Create a lane, and assign kinds of runs to it."""
    require_platform(principal)
    parts = parts_of(request)
    await create_lane(parts.database, body.name, body.change(), actor=principal.actor)
    if body.kinds:
        await move_kinds(parts.database, body.kinds, body.name, actor=principal.actor)
    return await _lane_body(parts, principal, body.name, 201)


@changes.delete("/lanes/{name}", response_model=Lane, responses=answers(404, 409))
async def remove_lane(request: Request, principal: WorkersManage, name: LaneName) -> JsonBody:
    """Delete a lane that no run uses. 409 if a task of this server uses the lane."""
    require_platform(principal)
    parts = parts_of(request)
    lane = await _find(parts, principal, name)
    if name in common_lanes(parts):
        raise Conflict(f'Tasks of this server use the lane "{name}", and would create it again. Change them first.')
    await delete_lane(parts.database, name, actor=principal.actor)
    return JsonBody(shown_lane(principal, lane))


@changes.put("/lanes/{name}/kinds", response_model=KindsAssigned, responses=answers(404))
async def put_kinds(request: Request, principal: WorkersManage, name: LaneName, body: AssignKinds) -> JsonBody:
    """Assign kinds of runs to a lane. Waiting runs of these kinds move to it."""
    require_platform(principal)
    parts = parts_of(request)
    moved = await move_kinds(parts.database, body.kinds, name, actor=principal.actor)
    parts.connection.bus.ring([name])
    lane = await _find(parts, principal, name)
    return JsonBody({"lane": shown_lane(principal, lane), "moved_runs": moved})


@changes.delete("/lanes/{name}/kinds/{kind}", response_model=Lane, responses=answers(404))
async def remove_kind(request: Request, principal: WorkersManage, name: LaneName, kind: Kind) -> JsonBody:
    """Remove the assignment of a kind. New runs use the lane that their code or definition names."""
    require_platform(principal)
    parts = parts_of(request)
    if kind not in (await _find(parts, principal, name)).kinds:
        raise NotFound(f'The kind "{kind}" is not assigned to the lane "{name}". See: GET /api/v2/lanes/{name}')
    await unassign_kinds(parts.database, [kind], actor=principal.actor)
    return await _lane_body(parts, principal, name)


@router.get("/lanes/{name}/holds", response_model=HOLDS.schema, responses=answers(404))
async def get_holds(request: Request, principal: WorkersManage, name: LaneName) -> JsonBody:
    """List the active holds of a lane, oldest first."""
    require_platform(principal)
    return HOLDS.all(await list_holds(parts_of(request).database, name))


@changes.post("/lanes/{name}/holds", status_code=201, response_model=LaneHold, responses=answers(404, 409))
async def post_hold(request: Request, principal: WorkersManage, name: LaneName, body: NewHold) -> ValueBody:
    """Hold a lane. When the response is sent, no run of the lane starts until every hold is released or has expired."""
    require_platform(principal)
    hold = await hold_lane(
        parts_of(request).database,
        name,
        owner=body.owner or principal.actor,
        reason=body.reason,
        expires_in_seconds=body.expires_in_seconds,
        actor=principal.actor,
    )
    return ValueBody(hold, 201)


@changes.delete("/lanes/{name}/holds/{hold_id}", response_model=LaneHold, responses=answers(404))
async def remove_hold(request: Request, principal: WorkersManage, name: LaneName, hold_id: HoldId) -> ValueBody:
    """Release a hold. Other holds of the lane stay."""
    require_platform(principal)
    parts = parts_of(request)
    hold = await release_hold(parts.database, name, hold_id, actor=principal.actor)
    parts.connection.bus.ring([name])
    return ValueBody(hold)


async def _find(parts: Services, principal: Principal, name: str) -> Lane:
    """Return a lane, with the tenant's own counts unless the principal acts in every tenant."""
    lanes = {lane.name: lane for lane in await list_lanes(parts.database)}
    if name not in lanes:
        raise UnknownLane(name, lanes)
    if principal.everywhere:
        return lanes[name]
    own = {lane.name: lane for lane in await list_tenant_lanes(parts.database, principal.tenant, {name})}
    return replace(own[name], kinds=lanes[name].kinds)


async def _lane_body(parts: Services, principal: Principal, name: str, status: int = 200) -> JsonBody:
    return JsonBody(shown_lane(principal, await _find(parts, principal, name)), status)
