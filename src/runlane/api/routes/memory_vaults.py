"""Users, vaults and memories: create, list, change and delete them."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Path, Query, Request

from runlane.access.policy import tenant_to_use
from runlane.api.auth import MemoryAdmin, MemoryRead, MemoryWrite
from runlane.api.error_responses import answers
from runlane.api.memory_forwarding import may_forward
from runlane.api.router import RawRouter
from runlane.api.schemas.fields import MAX_PAGE, Name
from runlane.api.schemas.memory import (
    MEMORIES,
    VAULTS,
    DeletedBody,
    MoveMemory,
    PostMemory,
    PostUser,
    PostVault,
)
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.domain.access import Principal
from runlane.domain.memory import Memory, MemoryUser, Vault
from runlane.memory.service import MemoryService
from runlane.store.memory.auditing import audit_memory

router = RawRouter(prefix="/memory", tags=["memory"])

Tenant = Annotated[Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")]
MemoryId = Annotated[Name, Path(description="The memory's id.", examples=["mem_0192f3"])]
VaultId = Annotated[Name, Path(description="The vault's id.", examples=["vault_0192f3"])]
Cursor = Annotated[Name | None, Query(description="`next_cursor` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


async def memory_of(request: Request) -> MemoryService:
    """Return the memory service of this process.

    A change of a memory that another node owns is forwarded if possible; otherwise the memory is requested from its
    owner.
    """
    service = await parts_of(request).app.memory()
    return service.forwarding(partial(may_forward, request))


async def audited(request: Request, principal: Principal, tenant: str, action: str, subject: str) -> None:
    """Record an operation on a whole memory in the audit log before the operation begins."""
    await audit_memory(parts_of(request).database, principal.actor, tenant, action, subject)


@router.post("/users", status_code=201, response_model=MemoryUser, responses=answers(404, 409))
async def post_user(request: Request, principal: MemoryAdmin, body: PostUser, tenant: Tenant = None) -> ValueBody:
    """Create a user of memory. Vaults of different users are separate."""
    created = await (await memory_of(request)).create_user(
        tenant_to_use(principal, tenant),
        body.id,
        body.email,
        display_name=body.display_name,
        time_zone=body.time_zone,
    )
    return ValueBody(created, 201)


@router.get("/users/{user_id}", response_model=MemoryUser, responses=answers(404))
async def get_user(
    request: Request, principal: MemoryRead, user_id: Annotated[Name, Path()], tenant: Tenant = None
) -> ValueBody:
    """Return a user."""
    return ValueBody(await (await memory_of(request)).get_user(tenant_to_use(principal, tenant), user_id))


@router.post("/vaults", status_code=201, response_model=Vault, responses=answers(404, 409))
async def post_vault(request: Request, principal: MemoryWrite, body: PostVault, tenant: Tenant = None) -> ValueBody:
    """Create a vault, which is a group of memories."""
    created = await (await memory_of(request)).create_vault(
        tenant_to_use(principal, tenant), body.title, description=body.description, user_id=body.user_id or ""
    )
    return ValueBody(created, 201)


@router.get("/vaults", response_model=VAULTS.schema, responses=answers(404))
async def get_vaults(
    request: Request, principal: MemoryRead, tenant: Tenant = None, cursor: Cursor = None, limit: Limit = 100
) -> JsonBody:
    """List the vaults of a tenant."""
    owner = tenant_to_use(principal, tenant)
    return VAULTS.page(await (await memory_of(request)).list_vaults(owner, after=cursor, limit=limit), limit)


@router.get("/vaults/{vault_id}", response_model=Vault, responses=answers(404))
async def get_vault(request: Request, principal: MemoryRead, vault_id: VaultId, tenant: Tenant = None) -> ValueBody:
    """Return a vault."""
    return ValueBody(await (await memory_of(request)).get_vault(tenant_to_use(principal, tenant), vault_id))


@router.delete("/vaults/{vault_id}", response_model=DeletedBody, responses=answers(404, 409))
async def delete_vault(request: Request, principal: MemoryAdmin, vault_id: VaultId, tenant: Tenant = None) -> JsonBody:
    """Delete a vault that has no memories."""
    await (await memory_of(request)).delete_vault(tenant_to_use(principal, tenant), vault_id)
    return JsonBody({"deleted": vault_id})


@router.post("/memories", status_code=201, response_model=Memory, responses=answers(404, 409))
async def post_memory(request: Request, principal: MemoryWrite, body: PostMemory, tenant: Tenant = None) -> ValueBody:
    """Create a memory with its context document."""
    created = await (await memory_of(request)).create_memory(
        tenant_to_use(principal, tenant),
        body.title,
        vault_id=body.vault_id,
        memory_type=body.memory_type,
        description=body.description,
    )
    return ValueBody(created, 201)


@router.get("/memories", response_model=MEMORIES.schema, responses=answers(404))
async def get_memories(
    request: Request,
    principal: MemoryRead,
    tenant: Tenant = None,
    vault_id: Annotated[Name | None, Query(description="Only memories of this vault.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> JsonBody:
    """List the memories of a tenant. A memory is listed as soon as it is created."""
    owner = tenant_to_use(principal, tenant)
    found = await (await memory_of(request)).list_memories(owner, vault_id=vault_id, after=cursor, limit=limit)
    return MEMORIES.page(found, limit)


@router.get("/memories/{memory_id}", response_model=Memory, responses=answers(404))
async def get_memory(request: Request, principal: MemoryRead, memory_id: MemoryId, tenant: Tenant = None) -> ValueBody:
    """Return a memory."""
    return ValueBody(await (await memory_of(request)).get_memory(tenant_to_use(principal, tenant), memory_id))


@router.post("/memories/{memory_id}/move", response_model=Memory, responses=answers(404, 409))
async def move_memory(
    request: Request, principal: MemoryWrite, memory_id: MemoryId, body: MoveMemory, tenant: Tenant = None
) -> ValueBody:
    """Move a memory to another vault."""
    owner = tenant_to_use(principal, tenant)
    return ValueBody(await (await memory_of(request)).move_memory(owner, memory_id, body.vault_id))


@router.delete("/memories/{memory_id}", response_model=DeletedBody, responses=answers(404, 409))
async def delete_memory(
    request: Request, principal: MemoryAdmin, memory_id: MemoryId, tenant: Tenant = None
) -> JsonBody:
    """Delete a memory with all its entries and fragments."""
    owner, memory = tenant_to_use(principal, tenant), await memory_of(request)
    # If the request is forwarded, the owner of the memory records it.
    record = partial(audited, request, principal, owner, "memory.delete", memory_id)
    await memory.delete_memory(owner, memory_id, record=record)
    return JsonBody({"deleted": memory_id})
