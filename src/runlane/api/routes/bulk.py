"""Bulk jobs: change many runs, read the progress, stop."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Depends, Path, Query, Request

from runlane.access.policy import may_see, tenant_to_list
from runlane.api.auth import RunsRead, RunsWrite
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.routes.lanes import find_lane
from runlane.api.routes.run_filters import run_filter
from runlane.api.schemas.failures import CreateBulk
from runlane.api.schemas.fields import MAX_PAGE, Name
from runlane.api.serializers import ValueBody
from runlane.api.services import Services, parts_of
from runlane.domain.access import Principal
from runlane.domain.bulk import BulkActionName, BulkItemPage, BulkJob, BulkJobPage, BulkPreview, BulkState, ItemState
from runlane.domain.maintenance import MaintenanceService
from runlane.errors import InvalidRequest
from runlane.failures.actions import ACTIONS
from runlane.failures.requests import BulkChange, create_bulk, preview_bulk
from runlane.store.failures.bulk_items import list_items
from runlane.store.failures.bulk_jobs import JobNotFound, list_jobs, read_job, stop_job

router = RawRouter(tags=["bulk jobs"])
changes = RawRouter(tags=["bulk jobs"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

JobId = Annotated[Name, Path(description="The job's id.", examples=["blk_0192f3a1b2c37abc8def0123456789ab"])]


PREVIEW: Final[dict[str, Any]] = {"model": BulkPreview, "description": "With `dry_run`: the changes of the job."}


@changes.post(
    "/bulk",
    status_code=202,
    response_model=BulkJob,
    responses={**answers(404, 429), 200: PREVIEW},
)
async def create_job(request: Request, principal: RunsWrite, body: CreateBulk) -> ValueBody:
    """Cancel or retry many runs, or change their priority, lane or tags, in the background; each run once."""
    parts = parts_of(request)
    action = BulkActionName(body.action)
    if action is BulkActionName.LANE and isinstance(lane := body.options.get("lane"), str):
        await find_lane(parts, principal, lane)
    selection = None
    if body.filter is not None:
        possible = ACTIONS[action].statuses or ()
        selection = run_filter(principal, body.filter, tuple(possible))
        if selection is None:
            raise InvalidRequest(f"No run with one of these statuses can be changed by the action {body.action}.")
    wanted = BulkChange(
        action,
        selection,
        tuple(body.run_ids or ()),
        body.options,
        body.rate,
        tenant_to_list(principal, None if body.filter is None else body.filter.tenant),
        principal.actor,
        {} if body.filter is None else body.filter.model_dump(mode="json", exclude_none=True),
    )
    return await submit_bulk(parts, principal, wanted, dry_run=body.dry_run)


@router.get("/bulk", response_model=BulkJobPage, responses=answers())
async def get_jobs(
    request: Request,
    principal: RunsRead,
    state: BulkState | None = None,
    tenant: Annotated[
        Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")
    ] = None,
    cursor: Annotated[Name | None, Query(description="`next_cursor` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> ValueBody:
    """List bulk jobs with their progress, newest first."""
    visible = tenant_to_list(principal, tenant)
    database = parts_of(request).database
    return ValueBody(await list_jobs(database, tenant=visible, state=state, before=cursor, limit=limit))


@router.get("/bulk/{job_id}", response_model=BulkJob, responses=answers(404))
async def get_job(request: Request, principal: RunsRead, job_id: JobId) -> ValueBody:
    """Return a bulk job with its exact progress."""
    return ValueBody(await _visible(parts_of(request), principal, job_id))


@router.get("/bulk/{job_id}/items", response_model=BulkItemPage, responses=answers(404))
async def get_items(
    request: Request,
    principal: RunsRead,
    job_id: JobId,
    state: Annotated[ItemState | None, Query(description="Such as `refused`.")] = None,
    cursor: Annotated[int, Query(ge=0, le=2**31 - 1, description="`next_cursor` of the previous page.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> ValueBody:
    """List the runs of a bulk job, in order. A refused run has the reason."""
    parts = parts_of(request)
    await _visible(parts, principal, job_id)
    return ValueBody(await list_items(parts.database, job_id, state=state, after=cursor, limit=limit))


@changes.post("/bulk/{job_id}/stop", response_model=BulkJob, responses=answers(404))
async def stop_bulk_job(request: Request, principal: RunsWrite, job_id: JobId) -> ValueBody:
    """Stop a bulk job. When the response is sent, no further run is changed. The request can be repeated."""
    parts = parts_of(request)
    await _visible(parts, principal, job_id)
    return ValueBody(await stop_job(parts.database, job_id, actor=principal.actor))


async def submit_bulk(parts: Services, principal: Principal, wanted: BulkChange, *, dry_run: bool) -> ValueBody:
    """With `dry_run`, return the number of affected runs; else create the job and wake the service that executes it."""
    async with parts.searches.turn(principal):
        if dry_run:
            return ValueBody(await preview_bulk(parts.database, wanted))
        created = await create_bulk(parts.database, wanted)
    parts.connection.bus.report_survey((MaintenanceService.BULK,))
    return ValueBody(await read_job(parts.database, created.id), 202)


async def _visible(parts: Services, principal: Principal, job_id: str) -> BulkJob:
    job = await read_job(parts.database, job_id)
    if not (principal.everywhere if job.tenant is None else may_see(principal, job.tenant)):
        raise JobNotFound(job_id)
    return job
