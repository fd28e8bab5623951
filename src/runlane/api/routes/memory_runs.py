"""Start runs that export, import and purge a memory. Each is recorded in the audit log."""

from __future__ import annotations

from fastapi import Request

from runlane.access.policy import tenant_to_use
from runlane.api.auth import MemoryAdmin, MemoryWrite
from runlane.api.body import LargeBodyRoute
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotencyKey
from runlane.api.router import RawRouter
from runlane.api.routes.memory_vaults import MemoryId, Tenant
from runlane.api.schemas.memory import MemoryRunBody
from runlane.api.schemas.memory_archive import PostImport, PostPurge
from runlane.api.serializers import JsonBody
from runlane.api.services import parts_of
from runlane.submit.memory_runs import start_export, start_import, start_purge

router = RawRouter(prefix="/memory/memories/{memory_id}", tags=["memory"], route_class=LargeBodyRoute)


@router.post("/export", status_code=202, response_model=MemoryRunBody, responses=answers(404, 429))
async def post_export(request: Request, principal: MemoryAdmin, memory_id: MemoryId, tenant: Tenant = None) -> JsonBody:
    """Start a run that writes a memory to its log, one JSON record per entry and fragment."""
    owner = tenant_to_use(principal, tenant)
    accepted = await start_export(parts_of(request).connection, owner, memory_id, actor=principal.actor)
    return JsonBody({"run_id": accepted.run_id}, 202)


@router.post("/import", status_code=202, response_model=MemoryRunBody, responses=answers(404, 409, 413, 429))
async def post_import(
    request: Request,
    principal: MemoryWrite,
    memory_id: MemoryId,
    body: PostImport,
    tenant: Tenant = None,
    idempotency_key: IdempotencyKey = None,
) -> JsonBody:
    """Start a run that adds entries in their order and writes fragments. Imports of one memory run one at a time."""
    owner = tenant_to_use(principal, tenant)
    accepted = await start_import(
        parts_of(request).connection, owner, memory_id, body.given(), actor=principal.actor, key=idempotency_key
    )
    return JsonBody({"run_id": accepted.run_id}, 202)


@router.post("/purge", status_code=202, response_model=MemoryRunBody, responses=answers(404, 429))
async def post_purge(
    request: Request, principal: MemoryAdmin, memory_id: MemoryId, body: PostPurge, tenant: Tenant = None
) -> JsonBody:
    """Start a run that deletes the content of all entries, or of entries before a time. Fragments are kept."""
    owner = tenant_to_use(principal, tenant)
    accepted = await start_purge(parts_of(request).connection, owner, memory_id, body.before_us, actor=principal.actor)
    return JsonBody({"run_id": accepted.run_id}, 202)
