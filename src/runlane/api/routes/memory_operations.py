"""Operate memory: replication, parked memories, export, and deletion of everything."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from runlane.access.policy import may_see, require_platform, tenant_to_use
from runlane.api.auth import MemoryAdmin
from runlane.api.error_responses import answers
from runlane.api.router import RawRouter
from runlane.api.routes.memory_vaults import MemoryId, Tenant, audited, memory_of
from runlane.api.schemas.fields import Name
from runlane.api.schemas.memory import DeletedBody, MemoryRunBody, RetriedBody
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.domain.memory import MemoryExport, MemoryNodeStatus, MemoryOp, MemoryTenantExport
from runlane.errors import InvalidRequest
from runlane.submit.memory_runs import start_reindex

router = RawRouter(prefix="/memory", tags=["memory"])


@router.get("/status", response_model=MemoryNodeStatus, responses=answers())
async def get_memory_status(request: Request, principal: MemoryAdmin) -> ValueBody:
    """Return how this process stores memory, the operations that it has not replicated, and its parked memories."""
    require_platform(principal)
    return ValueBody(await (await memory_of(request)).status())


@router.post("/memories/{memory_id}/retry", response_model=RetriedBody, responses=answers(404, 409))
async def retry_parked(
    request: Request, principal: MemoryAdmin, memory_id: MemoryId, tenant: Tenant = None
) -> JsonBody:
    """Replicate the operations of a parked memory again. Superseded operations are appended with new numbers."""
    await (await memory_of(request)).retry_parked(tenant_to_use(principal, tenant), memory_id)
    return JsonBody({"retried": memory_id})


@router.post("/memories/{memory_id}/discard", response_model=MemoryOp, responses=answers(404, 409))
async def discard_parked(
    request: Request, principal: MemoryAdmin, memory_id: MemoryId, tenant: Tenant = None
) -> ValueBody:
    """Drop the rejected operation of a parked memory, or all pending ones if it was superseded.

    Return the first of them.
    """
    owner = tenant_to_use(principal, tenant)
    await audited(request, principal, owner, "memory.discard", memory_id)
    return ValueBody(await (await memory_of(request)).discard_parked(owner, memory_id))


@router.post(
    "/memories/{memory_id}/reindex", status_code=202, response_model=MemoryRunBody, responses=answers(400, 404, 429)
)
async def reindex_memory(
    request: Request, principal: MemoryAdmin, memory_id: MemoryId, tenant: Tenant = None
) -> JsonBody:
    """Start a run that computes all embeddings of a memory again. Needs RUNLANE_MEMORY_EMBEDDING_MODEL."""
    owner = tenant_to_use(principal, tenant)
    accepted = await start_reindex(await parts_of(request).app.connect(), owner, memory_id)
    return JsonBody({"run_id": accepted.run_id}, 202)


@router.get("/memories/{memory_id}/export", response_model=MemoryExport, responses=answers(404))
async def export_memory(
    request: Request, principal: MemoryAdmin, memory_id: MemoryId, tenant: Tenant = None
) -> ValueBody:
    """Return the complete memory: its fields, all entries, and all fragments with their content."""
    return ValueBody(await (await memory_of(request)).export_memory(tenant_to_use(principal, tenant), memory_id))


@router.get("/export", response_model=MemoryTenantExport, responses=answers(404))
async def export_tenant(
    request: Request,
    principal: MemoryAdmin,
    tenant: Tenant = None,
    cursor: Annotated[Name | None, Query(description="`next_cursor` of the previous page.")] = None,
) -> ValueBody:
    """Return all memories of a tenant, one per page."""
    owner = tenant_to_use(principal, tenant)
    return ValueBody(await (await memory_of(request)).export_tenant(owner, after=cursor))


@router.delete("", response_model=DeletedBody, responses=answers(404, 409))
async def delete_tenant(
    request: Request,
    principal: MemoryAdmin,
    confirm: Annotated[Name, Query(description="The tenant whose vaults and memories are all deleted.")],
) -> JsonBody:
    """Delete every vault, memory and user of a tenant. `confirm` must be the id of the tenant."""
    if not may_see(principal, confirm):
        raise InvalidRequest(f'confirm="{confirm}" does not name the tenant of the key. Nothing was deleted.')
    await audited(request, principal, confirm, "memory.delete_all", confirm)
    await (await memory_of(request)).delete_tenant(confirm)
    return JsonBody({"deleted": confirm})
