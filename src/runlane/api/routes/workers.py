"""Workers: what one executes, and draining one worker or all workers of a version."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Request

from runlane.access.policy import require_platform, tenant_to_list
from runlane.api.auth import WorkersManage, WorkersView
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.schemas.fields import Name
from runlane.api.schemas.lanes import WORKERS
from runlane.api.schemas.workers import WorkerDetail, WorkerVersion
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.domain.views import WorkerInfo
from runlane.domain.wire import to_dict
from runlane.store.queue.worker_drain import (
    find_worker,
    losses_of_worker,
    running_of_worker,
    set_draining,
    set_draining_of_version,
)

router = RawRouter(tags=["lanes and workers"])
changes = RawRouter(tags=["lanes and workers"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

WorkerId = Annotated[Name, Path(description="The worker's id.", examples=["wrk_0192f3a1b2c37abc8def"])]


@router.get("/workers/{worker_id}", response_model=WorkerDetail, responses=answers(404))
async def get_worker(request: Request, principal: WorkersView, worker_id: WorkerId) -> JsonBody:
    """Return a worker, with up to 100 of its runs and of its lost attempts. It may have ended within the last day."""
    database = parts_of(request).database
    worker = await find_worker(database, worker_id)
    tenant = tenant_to_list(principal)
    run_ids = await running_of_worker(database, worker_id, tenant)
    losses = await losses_of_worker(database, worker_id, tenant)
    if not principal.everywhere:
        worker = worker.without_process(len(run_ids))
    return JsonBody({"worker": to_dict(worker), "run_ids": run_ids, "losses": [to_dict(loss) for loss in losses]})


@changes.post("/workers/drain", response_model=WORKERS.schema, responses=answers())
async def drain_version(request: Request, principal: WorkersManage, body: WorkerVersion) -> JsonBody:
    """Drain every live worker of a version. Return the workers that were not draining before."""
    return await _set_version(request, principal, body.version, draining=True)


@changes.post("/workers/resume", response_model=WORKERS.schema, responses=answers())
async def resume_version(request: Request, principal: WorkersManage, body: WorkerVersion) -> JsonBody:
    """Resume every drained worker of a version, so that it claims runs again.

    Return the workers that had been drained.
    """
    return await _set_version(request, principal, body.version, draining=False)


@changes.post("/workers/{worker_id}/drain", response_model=WorkerInfo, responses=answers(404, 409))
async def drain_worker(request: Request, principal: WorkersManage, worker_id: WorkerId) -> ValueBody:
    """Drain a worker: from its next heartbeat it claims no more runs and finishes its own. Its process continues."""
    return await _set(request, principal, worker_id, draining=True)


@changes.post("/workers/{worker_id}/resume", response_model=WorkerInfo, responses=answers(404, 409))
async def resume_worker(request: Request, principal: WorkersManage, worker_id: WorkerId) -> ValueBody:
    """Resume a drained worker, so that it claims runs again."""
    return await _set(request, principal, worker_id, draining=False)


async def _set_version(request: Request, principal: WorkersManage, version: str, *, draining: bool) -> JsonBody:
    require_platform(principal)
    database = parts_of(request).database
    changed = await set_draining_of_version(
        database, version, draining=draining, actor=principal.actor, tenant=principal.tenant
    )
    return WORKERS.all(changed)


async def _set(request: Request, principal: WorkersManage, worker_id: str, *, draining: bool) -> ValueBody:
    # A worker executes runs of every tenant.
    require_platform(principal)
    worker = await set_draining(
        parts_of(request).database, worker_id, draining=draining, actor=principal.actor, tenant=principal.tenant
    )
    return ValueBody(worker)
