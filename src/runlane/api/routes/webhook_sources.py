"""Incoming webhooks: manage sources, and receive requests of senders, which have no API key."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from runlane.access.policy import tenant_to_use
from runlane.access.webhook_signatures import HookRequest
from runlane.api.auth import SecretsManage
from runlane.api.body import read_bounded
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.schemas.fields import Name
from runlane.api.schemas.webhook_sources import SOURCES, HookReceived, PutSource
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.domain.maintenance import MaintenanceService
from runlane.domain.webhook_source import MAX_HOOK_BYTES, SOURCE_NAME, WebhookSource
from runlane.store.events.sources import delete_source, find_source, list_sources
from runlane.triggers.webhooks import SourceCreated, receive, rotate_token, set_source

router = RawRouter(tags=["incoming webhooks"])
changes = RawRouter(tags=["incoming webhooks"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])
hooks = RawRouter(tags=["incoming webhooks"])

SourceName = Annotated[str, Path(description="The source's name.", pattern=SOURCE_NAME, examples=["github"])]
Tenant = Annotated[Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")]
Token = Annotated[str, Path(description="The token of a source.", max_length=100)]


@hooks.post("/hooks/{token}", status_code=202, response_model=HookReceived, responses=answers(404, 413, 429))
async def post_hook(request: Request, token: Token) -> JsonBody:
    """Receive a webhook: verify it, then store it as an event.

    It needs no API key, because the source verifies the sender.
    """
    parts = parts_of(request)

    async def read() -> HookRequest:
        return HookRequest(
            {name.lower(): value for name, value in request.headers.items()},
            await read_bounded(request, MAX_HOOK_BYTES),
        )

    connection = parts.connection
    stored = await receive(connection.database, parts.app.settings, connection.vault.keyring, token, read)
    if isinstance(stored, str):
        return JsonBody({"challenge": stored})
    connection.bus.report_work({MaintenanceService.TRIGGERS})
    return JsonBody({"event_id": stored.event_id, "duplicate": stored.duplicate}, 202)


@router.get("/webhook-sources", response_model=SOURCES.schema, responses=answers(404))
async def get_sources(request: Request, principal: SecretsManage, tenant: Tenant = None) -> JsonBody:
    """List the sources of incoming webhooks by name, without their secrets."""
    return SOURCES.all(await list_sources(parts_of(request).database, tenant_to_use(principal, tenant)))


@router.get("/webhook-sources/{name}", response_model=WebhookSource, responses=answers(404))
async def get_source(request: Request, principal: SecretsManage, name: SourceName, tenant: Tenant = None) -> ValueBody:
    """Return a source."""
    return ValueBody(await find_source(parts_of(request).database, tenant_to_use(principal, tenant), name))


@changes.put("/webhook-sources/{name}", response_model=SourceCreated, responses=answers(404, 409))
async def put_webhook_source(
    request: Request, principal: SecretsManage, name: SourceName, body: PutSource
) -> ValueBody:
    """Create a source, or replace its settings and its secret. The response to a creation contains its path once."""
    connection = parts_of(request).connection
    owner = tenant_to_use(principal, body.tenant)
    return ValueBody(
        await set_source(
            connection.database, connection.vault.keyring, owner, name, body.change(), actor=principal.actor
        )
    )


@changes.post("/webhook-sources/{name}/token", response_model=SourceCreated, responses=answers(404, 409))
async def post_source_token(
    request: Request, principal: SecretsManage, name: SourceName, tenant: Tenant = None
) -> ValueBody:
    """Create a new path for a source. Requests to the old path are rejected."""
    owner = tenant_to_use(principal, tenant)
    return ValueBody(await rotate_token(parts_of(request).database, owner, name, actor=principal.actor))


@changes.delete("/webhook-sources/{name}", response_model=WebhookSource, responses=answers(404, 409))
async def remove_source(
    request: Request, principal: SecretsManage, name: SourceName, tenant: Tenant = None
) -> ValueBody:
    """Delete a source. Its events are kept."""
    owner = tenant_to_use(principal, tenant)
    return ValueBody(await delete_source(parts_of(request).database, owner, name, actor=principal.actor))
