"""Worker administration under /admin/workers, for worker consoles that use these paths."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request

from runlane.access.policy import tenant_to_list
from runlane.api.auth import WorkersManage, WorkersView
from runlane.api.compat.lane_admin_schemas import JobCancelled, JobPriority, WorkerStatus
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.routes.lanes import LaneName, change_lane, common_lanes, shown_lanes
from runlane.api.routes.visibility import RunId, require_visible
from runlane.api.schemas.lanes import LANES, LaneChanged, PatchLane
from runlane.api.serializers import JsonBody
from runlane.api.services import parts_of
from runlane.domain.run import MAX_PRIORITY, MIN_PRIORITY, Status
from runlane.errors import WrongState
from runlane.store.queue.overview import overview_body, read_overview
from runlane.store.queue.runs import find_run

router = RawRouter(prefix="/admin/workers", tags=["worker administration"])
changes = RawRouter(
    prefix="/admin/workers",
    tags=["worker administration"],
    route_class=IdempotentRoute,
    dependencies=[Depends(idempotency_header)],
)

_SHOWN_JOBS = 200


@router.get("/status", response_model=WorkerStatus, responses=answers())
async def get_status(request: Request, principal: WorkersView) -> JsonBody:
    """Return slots, running runs and queued runs at one moment. A tenant sees only its own runs."""
    parts = parts_of(request)
    found = await read_overview(parts.database, tenant_to_list(principal), common_lanes(parts), _SHOWN_JOBS)
    return JsonBody(overview_body(found))


@router.get("/lanes", response_model=LANES.schema, responses=answers())
async def get_lanes(request: Request, principal: WorkersView) -> JsonBody:
    """Return the lanes with their running and queued runs. A tenant sees only its own counts."""
    return JsonBody(await shown_lanes(parts_of(request), principal))


@changes.patch("/lanes/{name}", response_model=LaneChanged, responses=answers(404, 409))
async def patch_lane(request: Request, principal: WorkersManage, name: LaneName, body: PatchLane) -> JsonBody:
    """Change a lane."""
    return JsonBody(await change_lane(parts_of(request), principal, name, body))


@changes.post("/jobs/{run_id}/cancel", response_model=JobCancelled, responses=answers(404, 409))
async def cancel_job(request: Request, principal: WorkersManage, run_id: RunId) -> JsonBody:
    """Cancel a run that has not ended."""
    parts = parts_of(request)
    standing = await require_visible(parts, principal, run_id)
    if standing.status.terminal:
        raise WrongState(f"Run {run_id} is {standing.status.value}. Only a run that has not ended can be cancelled.")
    status = await parts.app.cancel(run_id, actor=principal.actor)
    message = "It is being cancelled." if status is Status.RUNNING else f"It is {status.value}."
    return JsonBody({"job_id": run_id, "cancelled": True, "message": message})


@changes.patch("/jobs/{run_id}/priority", response_model=JobPriority, responses=answers(404, 409))
async def set_priority(
    request: Request,
    principal: WorkersManage,
    run_id: RunId,
    priority: Annotated[int, Query(ge=MIN_PRIORITY, le=MAX_PRIORITY)],
) -> JsonBody:
    """Change the priority of a waiting run."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    old = (await find_run(parts.database, run_id)).priority
    await parts.app.set_priority(run_id, priority, actor=principal.actor)
    return JsonBody({"job_id": run_id, "old_priority": old, "new_priority": priority})
