"""Administration of access: keys, tenants, roles, and the audit log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import Depends, Path, Query, Request

from runlane.access.policy import (
    check_grant,
    check_revocation,
    may_see,
    require_everywhere,
    tenant_to_list,
    tenant_to_use,
)
from runlane.api.auth import Anyone, AuditRead, KeysManage
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.schemas.access import AUDIT, KEYS, ROLES, TENANTS, NewKey, NewTenant, PatchTenant, PutRole, ShownKey
from runlane.api.schemas.fields import MAX_PAGE, Name
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.domain.access import ApiKey, Permission, Principal, Role
from runlane.domain.tenant import Tenant, TenantBudget, TenantLimits
from runlane.domain.wire import to_dict
from runlane.errors import NotFound
from runlane.store.access.audit import list_audit
from runlane.store.access.keys import create_key, find_key, list_keys, revoke_key
from runlane.store.access.roles import delete_role, find_role, list_roles, set_role
from runlane.store.access.tenants import (
    LIMITS,
    TenantChange,
    create_tenant,
    delete_tenant,
    find_tenant,
    list_tenants,
    set_tenant,
)

router = RawRouter(tags=["access"])
changes = RawRouter(tags=["access"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

KeyId = Annotated[str, Path(description="The key's id.", examples=["key_0192f3a1b2c37abc8def0123456789ab"])]
TenantId = Annotated[str, Path(description="The tenant's id.", examples=["acme"])]
RoleName = Annotated[str, Path(description="The role's name.", examples=["auditor"])]
Cursor = Annotated[Name | None, Query(description="`next_cursor` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.get("/me", response_model=Principal, responses=answers())
async def get_me(request: Request, principal: Anyone) -> ValueBody:
    """Return the tenant, the role and the permissions of the key."""
    return ValueBody(principal)


@router.get("/keys", response_model=KEYS.schema, responses=answers(404))
async def get_keys(
    request: Request,
    principal: KeysManage,
    tenant: Annotated[Name | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> JsonBody:
    """List the keys, newest first, including revoked keys. The secret values of keys are not stored."""
    only = tenant_to_list(principal, tenant)
    keys = await list_keys(parts_of(request).database, tenant=only, before=cursor, limit=limit)
    return KEYS.page(keys, limit)


@changes.post("/keys", status_code=201, response_model=ShownKey, responses=answers(404, 409))
async def post_key(request: Request, principal: KeysManage, body: NewKey) -> JsonBody:
    """Create a key, which expires no later than the caller's key.

    The response shows the key once. Repeating the request with its Idempotency-Key does not show it again.
    """
    database = parts_of(request).database
    tenant = tenant_to_use(principal, body.tenant)
    check_grant(principal, await find_role(database, body.role), tenant)
    key, raw = await create_key(
        database,
        body.name,
        body.role,
        actor=principal.actor,
        tenant=tenant,
        life_seconds=body.expires_in_seconds,
        not_after_us=principal.expires_at_us,
    )
    return JsonBody({"key": raw, **to_dict(key)}, 201)


@changes.delete("/keys/{key_id}", response_model=ApiKey, responses=answers(404, 409))
async def delete_key(request: Request, principal: KeysManage, key_id: KeyId) -> ValueBody:
    """Revoke a key whose role has no more permissions than the caller's, at once and everywhere.

    The request can be repeated.
    """
    _check_path(key_id, f'No key "{key_id}" exists.')
    only = tenant_to_list(principal)
    database = parts_of(request).database
    known = await find_key(database, key_id, tenant=only)
    check_revocation(principal, await find_role(database, known.role))
    key = await revoke_key(database, key_id, actor=principal.actor, tenant=only)
    _forget_keys(request, lambda known: known.key_id == key_id)
    return ValueBody(key)


@router.get("/tenants", response_model=TENANTS.schema, responses=answers())
async def get_tenants(request: Request, principal: KeysManage) -> JsonBody:
    """List the tenants that the key may see."""
    found = await list_tenants(parts_of(request).database)
    return TENANTS.all([tenant for tenant in found if may_see(principal, tenant.id)])


@router.get("/tenants/{tenant_id}", response_model=Tenant, responses=answers(404))
async def get_tenant(request: Request, principal: KeysManage, tenant_id: TenantId) -> ValueBody:
    """Return a tenant with its limits."""
    _check_path(tenant_id, f'No tenant "{tenant_id}" exists.')
    tenant_to_use(principal, tenant_id)
    return ValueBody(await find_tenant(parts_of(request).database, tenant_id))


@changes.post("/tenants", status_code=201, response_model=Tenant, responses=answers(409))
async def post_tenant(request: Request, principal: KeysManage, body: NewTenant) -> ValueBody:
    """Create a tenant."""
    require_everywhere(principal, Permission.KEYS_MANAGE)
    limits = TenantLimits(body.max_queued, body.max_running, body.rate_per_second)
    budget = TenantBudget(body.max_cost_usd_per_day, body.on_cap)
    tenant = await create_tenant(
        parts_of(request).database,
        body.id,
        actor=principal.actor,
        name=body.name,
        limits=limits,
        budget=budget,
        weight=body.weight,
    )
    return ValueBody(tenant, 201)


@changes.patch("/tenants/{tenant_id}", response_model=Tenant, responses=answers(404, 409))
async def patch_tenant(request: Request, principal: KeysManage, tenant_id: TenantId, body: PatchTenant) -> ValueBody:
    """Change a tenant. A limit that is null is removed. The change is in effect when the response is sent."""
    require_everywhere(principal, Permission.KEYS_MANAGE)
    _check_path(tenant_id, f'No tenant "{tenant_id}" exists.')
    removed = frozenset(name for name in LIMITS if name in body.model_fields_set and getattr(body, name) is None)
    change = TenantChange(**body.model_dump(), unlimited=removed)
    _, tenant = await set_tenant(parts_of(request).database, tenant_id, change, actor=principal.actor)
    if not tenant.enabled:
        _forget_keys(request, lambda known: known.tenant == tenant_id)
    return ValueBody(tenant)


@changes.delete("/tenants/{tenant_id}", response_model=Tenant, responses=answers(404, 409))
async def remove_tenant(request: Request, principal: KeysManage, tenant_id: TenantId) -> ValueBody:
    """Delete a tenant that has no runs and no memories, and revoke its keys."""
    require_everywhere(principal, Permission.KEYS_MANAGE)
    _check_path(tenant_id, f'No tenant "{tenant_id}" exists.')
    parts = parts_of(request)
    delete = partial(delete_tenant, parts.database, tenant_id, actor=principal.actor)
    deleted = await parts.connection.memory_opener.delete_tenant(tenant_id, delete)
    _forget_keys(request, lambda known: known.tenant == tenant_id)
    return ValueBody(deleted)


@router.get("/roles", response_model=ROLES.schema, responses=answers())
async def get_roles(request: Request, principal: KeysManage) -> JsonBody:
    """List the built-in roles, then the custom roles."""
    return ROLES.all(await list_roles(parts_of(request).database))


@changes.put("/roles/{name}", response_model=Role, responses=answers(404, 409))
async def put_role(request: Request, principal: KeysManage, name: RoleName, body: PutRole) -> ValueBody:
    """Create or change a custom role. It applies to the next request of every key that has the role."""
    require_everywhere(principal, Permission.KEYS_MANAGE)
    _, role = await set_role(parts_of(request).database, name, body.permissions, actor=principal.actor)
    _forget_keys(request, lambda known: known.role == name)
    return ValueBody(role)


@changes.delete("/roles/{name}", response_model=Role, responses=answers(404, 409))
async def remove_role(request: Request, principal: KeysManage, name: RoleName) -> ValueBody:
    """Delete a custom role that no key has."""
    require_everywhere(principal, Permission.KEYS_MANAGE)
    return ValueBody(await delete_role(parts_of(request).database, name, actor=principal.actor))


@router.get("/audit", response_model=AUDIT.schema, responses=answers(404))
async def get_audit(
    request: Request,
    principal: AuditRead,
    tenant: Annotated[Name | None, Query()] = None,
    action: Annotated[Name | None, Query(description="Such as key.create.")] = None,
    subject: Annotated[Name | None, Query(description="The changed object.")] = None,
    actor: Annotated[
        list[Name] | None, Query(max_length=100, description="The id of a key, or cli:NAME. Repeat for several.")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> JsonBody:
    """List administrative changes, newest first, with their author and the values before and after."""
    entries = await list_audit(
        parts_of(request).database,
        tenant=tenant_to_list(principal, tenant),
        action=action,
        subject=subject,
        actors=actor or (),
        before=cursor,
        limit=limit,
    )
    return AUDIT.page(entries, limit)


def _forget_keys(request: Request, which: Callable[[Principal], bool]) -> None:
    """Do not accept these keys without a check, should the database become unavailable."""
    parts_of(request).authenticator.remembered.forget(which)


def _check_path(value: str, message: str) -> None:
    """Raise NotFound for a value that cannot be an id; the database would not even accept NUL in a value."""
    if not value.isprintable():
        raise NotFound(message)
