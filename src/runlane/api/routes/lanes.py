"""Lanes and workers: looking at them, and changing lanes while everything runs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request

from runlane.api.door import WorkersManage, WorkersView
from runlane.api.once import OnceRoute, idempotency_header
from runlane.api.parts import Parts, parts_of
from runlane.api.problems import answers
from runlane.api.reply import Reply, lane_json, worker_json
from runlane.api.shapes.lanes import LaneChanged, Lanes, LaneView, PatchLane, Workers
from runlane.errors import InvalidRequest, UnknownLane
from runlane.model.access import Principal
from runlane.model.lane import Lane
from runlane.store.lanes import LaneChange, list_lanes, set_lane
from runlane.store.workers import list_workers

router = APIRouter(tags=["lanes and workers"])
changes = APIRouter(tags=["lanes and workers"], route_class=OnceRoute, dependencies=[Depends(idempotency_header)])

LaneName = Annotated[str, Path(description="The lane's name.", examples=["default"])]


@router.get("/workers", response_model=Workers, responses=answers())
async def get_workers(
    request: Request,
    principal: WorkersView,
    gone: Annotated[bool, Query(description="Also those that ended lately.")] = False,
) -> Reply:
    """The workers, newest first."""
    rows = await list_workers(parts_of(request).database, gone_too=gone)
    return Reply({"workers": [worker_json(row) for row in rows]})


@router.get("/lanes", response_model=Lanes, responses=answers())
async def get_lanes(request: Request, principal: WorkersView) -> Reply:
    """Every lane with what runs and waits in it."""
    return Reply({"lanes": [lane_json(lane) for lane in await list_lanes(parts_of(request).database)]})


@router.get("/lanes/{name}", response_model=LaneView, responses=answers(404))
async def get_lane(request: Request, principal: WorkersView, name: LaneName) -> Reply:
    """One lane."""
    return Reply(lane_json(await find_lane(parts_of(request), name)))


@changes.patch("/lanes/{name}", response_model=LaneChanged, responses=answers(404, 409))
async def patch_lane(request: Request, principal: WorkersManage, name: LaneName, body: PatchLane) -> Reply:
    """Change a lane. When this answers, no claim under the old settings is left."""
    return Reply(await change_lane(parts_of(request), principal, name, body))


async def find_lane(parts: Parts, name: str) -> Lane:
    """The lane of this name."""
    lanes = await list_lanes(parts.database)
    for lane in lanes:
        if lane.name == name:
            return lane
    raise UnknownLane(name, [lane.name for lane in lanes])


async def change_lane(parts: Parts, principal: Principal, name: str, body: PatchLane) -> dict[str, Any]:
    """The lane after the change, and what changed."""
    if not body.model_fields_set:
        raise InvalidRequest("Nothing to change: give enabled, max_slots or poll_interval_ms.")
    await find_lane(parts, name)
    change = LaneChange(
        enabled=body.enabled,
        max_slots=body.max_slots,
        uncapped="max_slots" in body.model_fields_set and body.max_slots is None,
        poll_interval_ms=body.poll_interval_ms,
    )
    old, new = await set_lane(parts.database, name, change, actor=principal.actor)
    changed = {
        field: {"old": None if old is None else old[field], "new": value}
        for field, value in new.items()
        if old is None or old[field] != value
    }
    parts.connection.bus.ring([name])
    return {"lane": lane_json(await find_lane(parts, name)), "changed": changed}
