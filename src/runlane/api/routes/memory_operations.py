"""Operate memory: replication, parked memories, export, and deletion of everything.

An export is sent while it is read, a page of entries at a time: the server never holds the whole memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from typing import Annotated, Final

from fastapi import Query, Request
from starlette.responses import StreamingResponse

from runlane.access.policy import may_see, require_platform, tenant_to_use
from runlane.api.auth import MemoryAdmin
from runlane.api.error_responses import answers
from runlane.api.router import RawRouter
from runlane.api.routes.memory_vaults import MemoryId, Tenant, audited, memory_of
from runlane.api.schemas.fields import Name
from runlane.api.schemas.memory import DeletedBody, MemoryRunBody, RetriedBody
from runlane.api.serializers import JsonBody, ValueBody, to_bytes
from runlane.api.services import parts_of
from runlane.domain.memory import Memory, MemoryExport, MemoryNodeStatus, MemoryOp, MemoryTenantExport
from runlane.domain.wire import to_json
from runlane.errors import InvalidRequest
from runlane.memory.service import MemoryService
from runlane.submit.memory_runs import start_reindex

router = RawRouter(prefix="/memory", tags=["memory"])

_PIECE_BYTES: Final = 64 * 1024


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
) -> StreamingResponse:
    """Return the complete memory: its fields, all entries, and all fragments with their content."""
    owner, service = tenant_to_use(principal, tenant), await memory_of(request)
    memory = await service.get_memory(owner, memory_id)
    return StreamingResponse(_exported(service, owner, memory), media_type="application/json")


@router.get("/export", response_model=MemoryTenantExport, responses=answers(404))
async def export_tenant(
    request: Request,
    principal: MemoryAdmin,
    tenant: Tenant = None,
    cursor: Annotated[Name | None, Query(description="`next_cursor` of the previous page.")] = None,
) -> StreamingResponse:
    """Return all memories of a tenant, one per page."""
    owner, service = tenant_to_use(principal, tenant), await memory_of(request)
    page, memory = await service.export_page(owner, after=cursor)
    return StreamingResponse(_exported_page(service, owner, page, memory), media_type="application/json")


async def _exported(service: MemoryService, tenant: str, memory: Memory) -> AsyncGenerator[bytes]:
    """Return the JSON of a MemoryExport."""
    yield b'{"memory":' + to_json(memory) + b',"entries":['
    entries = (entry async for page in service.entry_pages(tenant, memory.id) for entry in page)
    async for item in _joined(entries):
        yield item
    yield b'],"fragments":['
    async for item in _joined(service.fragments(tenant, memory.id)):
        yield item
    yield b"]}"


async def _exported_page(
    service: MemoryService, tenant: str, page: MemoryTenantExport, memory: Memory | None
) -> AsyncGenerator[bytes]:
    """Return the JSON of a page of the export of a tenant, with its memory."""
    users, vaults = (b",".join(map(to_json, values)) for values in (page.users, page.vaults))
    yield b'{"users":[' + users + b'],"vaults":[' + vaults + b'],"memory":'
    if memory is None:
        yield b"null"
    else:
        async for part in _exported(service, tenant, memory):
            yield part
    yield b',"next_cursor":' + to_bytes(page.next_cursor) + b"}"


async def _joined(values: AsyncIterable[object]) -> AsyncGenerator[bytes]:
    """Return values as JSON, separated by commas, in pieces that are worth a packet."""
    piece, separator = bytearray(), b""
    async for value in values:
        piece += separator + to_json(value)
        separator = b","
        if len(piece) >= _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


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
