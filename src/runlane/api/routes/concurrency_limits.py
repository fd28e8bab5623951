"""Concurrency limits that a tenant stores under a name and that several targets share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query, Request
from pydantic import ConfigDict, Field

from runlane.access.policy import tenant_to_use
from runlane.api.auth import RunsRead, WorkersManage
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.schemas.fields import Name, RequestModel
from runlane.api.schemas.listing import Listing
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.domain.concurrency import MAX_RUNNING, SharedLimit

router = RawRouter(tags=["limits and usage"])
changes = RawRouter(tags=["limits and usage"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

LimitName = Annotated[Name, Path(description="The name of the limit.", examples=["gpu"])]
OfTenant = Annotated[
    Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")
]
CONCURRENCY_LIMITS = Listing("concurrency_limits", SharedLimit)


class PutConcurrencyLimit(RequestModel):
    """The number of runs that a limit admits at once."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_running": 4}]})

    max_running: int = Field(ge=0, le=MAX_RUNNING, description="0 admits none.")
    tenant: Name | None = Field(default=None, description="The tenant; the default is the tenant of the key.")


@router.get("/concurrency-limits", response_model=CONCURRENCY_LIMITS.schema, responses=answers(404))
async def get_concurrency_limits(request: Request, principal: RunsRead, tenant: OfTenant = None) -> JsonBody:
    """List the shared concurrency limits of the tenant with their use."""
    owner = tenant_to_use(principal, tenant)
    return CONCURRENCY_LIMITS.all(await parts_of(request).app.concurrency_limits(tenant=owner))


@router.get("/concurrency-limits/{name}", response_model=SharedLimit, responses=answers(404))
async def get_concurrency_limit(
    request: Request, principal: RunsRead, name: LimitName, tenant: OfTenant = None
) -> ValueBody:
    """Return a shared concurrency limit with its use."""
    owner = tenant_to_use(principal, tenant)
    return ValueBody(await parts_of(request).app.concurrency_limit(name, tenant=owner))


@changes.put("/concurrency-limits/{name}", response_model=SharedLimit, responses=answers(404, 409))
async def put_concurrency_limit(
    request: Request, principal: WorkersManage, name: LimitName, body: PutConcurrencyLimit
) -> ValueBody:
    """Create or change a shared concurrency limit. The change is in effect when the response is sent.

    With a lower number, queued runs wait again and running runs continue. With a higher number, waiting runs are
    queued.
    """
    owner = tenant_to_use(principal, body.tenant)
    app = parts_of(request).app
    return ValueBody(await app.set_concurrency_limit(name, body.max_running, tenant=owner, actor=principal.actor))


@changes.delete("/concurrency-limits/{name}", response_model=SharedLimit, responses=answers(404, 409))
async def remove_concurrency_limit(
    request: Request, principal: WorkersManage, name: LimitName, tenant: OfTenant = None
) -> ValueBody:
    """Delete a shared concurrency limit. 409 while a run is admitted under it or waits for it."""
    owner = tenant_to_use(principal, tenant)
    app = parts_of(request).app
    return ValueBody(await app.delete_concurrency_limit(name, tenant=owner, actor=principal.actor))
