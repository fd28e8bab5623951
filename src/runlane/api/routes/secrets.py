"""Secrets: set, list by name, delete, and re-encrypt. No response contains a value."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

from fastapi import Depends, Path, Query, Request

from runlane.access.policy import tenant_to_list, tenant_to_use
from runlane.api.auth import SecretsManage
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.schemas.fields import MAX_PAGE, Name
from runlane.api.schemas.secrets import SECRETS, PutSecret, RotateSecrets, SecretUsers
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.domain.secret import NAME_PATTERN, RotatedSecrets, Secret
from runlane.store.access.secrets import list_secrets
from runlane.store.definition_users import find_secret_users

router = RawRouter(tags=["secrets"])
changes = RawRouter(tags=["secrets"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

SecretName = Annotated[
    str,
    Path(description="The name that definitions refer to.", pattern=f"^{NAME_PATTERN}$", examples=["GITHUB_TOKEN"]),
]
Tenant = Annotated[Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")]
_MAX_UNREADABLE = 1000


@router.get("/secrets", response_model=SECRETS.schema, responses=answers(404))
async def get_secrets(
    request: Request,
    principal: SecretsManage,
    tenant: Tenant = None,
    cursor: Annotated[Name | None, Query(description="`next_cursor` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> JsonBody:
    """List a tenant's secrets by name, without their values."""
    owner = tenant_to_use(principal, tenant)
    found = await list_secrets(parts_of(request).database, owner, after=cursor, limit=limit)
    return SECRETS.page(found, limit)


@router.get("/secrets/{name}/used-by", response_model=SecretUsers, responses=answers(404))
async def get_secret_users(
    request: Request, principal: SecretsManage, name: SecretName, tenant: Tenant = None
) -> JsonBody:
    """List the definitions that refer to a secret, even if the secret does not exist; at most 500."""
    found = await find_secret_users(parts_of(request).database, tenant_to_use(principal, tenant), name)
    return JsonBody({"used_by": [asdict(user) for user in found]})


@changes.put("/secrets/{name}", response_model=Secret, responses=answers(404, 409, 413))
async def put_secret(request: Request, principal: SecretsManage, name: SecretName, body: PutSecret) -> ValueBody:
    """Set a secret. Workers use the new value within two seconds. 409 if the server has no encryption key."""
    owner = tenant_to_use(principal, body.tenant)
    _, secret = await parts_of(request).connection.vault.set(owner, name, body.value, actor=principal.actor)
    return ValueBody(secret)


@changes.delete("/secrets/{name}", response_model=Secret, responses=answers(404, 409))
async def remove_secret(
    request: Request, principal: SecretsManage, name: SecretName, tenant: Tenant = None
) -> ValueBody:
    """Delete a secret. Definitions that refer to it fail afterwards."""
    owner = tenant_to_use(principal, tenant)
    deleted = await parts_of(request).connection.vault.delete(owner, name, actor=principal.actor)
    return ValueBody(deleted)


@changes.post("/secrets/rotate", response_model=RotatedSecrets, responses=answers(404, 409))
async def post_rotate(request: Request, principal: SecretsManage, body: RotateSecrets) -> ValueBody:
    """Re-encrypt secrets of older keys with the server's first key.

    The request can be repeated, even while runs use secrets.
    """
    only = tenant_to_list(principal, body.tenant)
    done = await parts_of(request).connection.vault.rotate(actor=principal.actor, tenant=only)
    return ValueBody(replace(done, unreadable=done.unreadable[:_MAX_UNREADABLE]))
