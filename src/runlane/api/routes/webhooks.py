"""Webhooks: endpoints, their secrets and tests, the log of deliveries, and replays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Path, Query, Request

from runlane.access.policy import may_see, require, tenant_to_list, tenant_to_use
from runlane.api.auth import RunsRead, SecretsManage, WebhooksWrite
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.schemas.fields import MAX_PAGE, Key, Moment, Name, moment_us
from runlane.api.schemas.webhooks import (
    DELIVERIES,
    ENDPOINTS,
    WEBHOOK_KEYS,
    CreatedEndpoint,
    DisableEndpoint,
    EnabledEndpoint,
    EnableEndpoint,
    EventTypeList,
    NewEndpoint,
    PatchEndpoint,
    ReplayDeliveries,
    ReplayDelivery,
    RotateDefaultSecret,
    RotateSecret,
)
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import Services, parts_of
from runlane.domain.access import Permission, Principal
from runlane.domain.webhook import (
    DeliveryStatus,
    WebhookAttempt,
    WebhookDelivery,
    WebhookDeliveryLog,
    WebhookEndpoint,
    WebhookReplay,
    WebhookSecret,
    origin_of,
)
from runlane.domain.webhook_events import WebhookType, describe_type
from runlane.domain.wire import to_dict
from runlane.store.webhooks.deliveries import (
    list_deliveries,
    read_delivery,
    replay_delivery,
    replay_many,
    unknown_delivery,
)
from runlane.store.webhooks.endpoints import (
    delete_endpoint,
    disable_endpoint,
    enable_endpoint,
    find_endpoint,
    list_endpoints,
    unknown_endpoint,
)
from runlane.store.webhooks.secrets import list_public_keys
from runlane.webhooks.endpoints import WebhookManager, endpoint_fields
from runlane.webhooks.headers import names_in

router = RawRouter(tags=["webhooks"])
changes = RawRouter(tags=["webhooks"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

EndpointId = Annotated[Key, Path(description="The endpoint's id.", examples=["we_0192f3a1b2c37abc8def0123456789ab"])]
DeliveryId = Annotated[Key, Path(description="The delivery's id.", examples=["whd_0192f3a1b2c37abc8def0123456789ab"])]
Tenant = Annotated[Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")]
Cursor = Annotated[Key | None, Query(description="`next_cursor` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.get("/webhooks/event-types", response_model=EventTypeList, responses=answers())
async def get_event_types(request: Request, principal: RunsRead) -> JsonBody:
    """List the types of messages with their JSON Schemas and examples."""
    return JsonBody({"event_types": [describe_type(kind) for kind in WebhookType]})


@router.get("/webhooks/keys", response_model=WEBHOOK_KEYS.schema, responses=answers(404))
async def get_keys(request: Request, principal: RunsRead, tenant: Tenant = None) -> JsonBody:
    """List the public keys of endpoints with ed25519 signatures."""
    only = tenant_to_list(principal, tenant)
    return WEBHOOK_KEYS.all(await list_public_keys(parts_of(request).database, only))


@router.get("/webhooks/endpoints", response_model=ENDPOINTS.schema, responses=answers(404))
async def get_endpoints(
    request: Request, principal: RunsRead, tenant: Tenant = None, cursor: Cursor = None, limit: Limit = 100
) -> JsonBody:
    """List the endpoints. Without webhooks:write, only the origins of their URLs are shown."""
    only = tenant_to_list(principal, tenant)
    found = await list_endpoints(parts_of(request).database, only, after=cursor, limit=limit)
    return ENDPOINTS.page([_shown(principal, endpoint) for endpoint in found], limit)


@changes.post("/webhooks/endpoints", status_code=201, response_model=CreatedEndpoint, responses=answers(404, 409))
async def post_endpoint(request: Request, principal: WebhooksWrite, body: NewEndpoint) -> JsonBody:
    """Create an endpoint. Only this response contains its secret. 409 if the server has no encryption key."""
    tenant = tenant_to_use(principal, body.tenant)
    fields = endpoint_fields(body.model_dump(exclude={"tenant", "signature"}))
    _require_secrets(principal, fields.headers)
    endpoint, secret = await _manager(request).create(tenant, fields, signature=body.signature, actor=principal.actor)
    return JsonBody({"endpoint": to_dict(endpoint), "secret": to_dict(secret)}, 201)


def _may_use_secrets(principal: Principal) -> bool:
    return bool(principal.permissions & {Permission.SECRETS_MANAGE, Permission.DEFINITIONS_WRITE})


def _require_secrets(principal: Principal, headers: Mapping[str, str] | None) -> None:
    """Refuse headers that refer to secrets, whose values the endpoint would receive, unless the key may use secrets."""
    if names_in(headers or {}) and not _may_use_secrets(principal):
        require(principal, Permission.SECRETS_MANAGE)


@router.get("/webhooks/endpoints/{endpoint_id}", response_model=WebhookEndpoint, responses=answers(404))
async def get_endpoint(request: Request, principal: RunsRead, endpoint_id: EndpointId) -> ValueBody:
    """Return an endpoint with its health."""
    return ValueBody(_shown(principal, await _visible(parts_of(request), principal, endpoint_id)))


@changes.patch("/webhooks/endpoints/{endpoint_id}", response_model=WebhookEndpoint, responses=answers(404, 409))
async def patch_endpoint(
    request: Request, principal: WebhooksWrite, endpoint_id: EndpointId, body: PatchEndpoint
) -> ValueBody:
    """Change an endpoint. Stored messages that are not delivered yet go to the new URL."""
    endpoint = await _visible(parts_of(request), principal, endpoint_id)
    fields = endpoint_fields(body.model_dump(exclude={"version"}))
    _require_secrets(principal, fields.headers)
    version = body.version
    if fields.url is not None and fields.headers is None and not _may_use_secrets(principal):
        # Another URL would receive what the headers refer to. They must not change between this check and the write.
        _require_secrets(principal, endpoint.headers)
        version = endpoint.version if version is None else version
    changed = await _manager(request).change(endpoint_id, fields, version=version, actor=principal.actor)
    return ValueBody(changed)


@changes.delete("/webhooks/endpoints/{endpoint_id}", response_model=WebhookEndpoint, responses=answers(404, 409))
async def remove_endpoint(request: Request, principal: WebhooksWrite, endpoint_id: EndpointId) -> ValueBody:
    """Delete an endpoint. Messages that were not delivered are discarded."""
    parts = parts_of(request)
    await _visible(parts, principal, endpoint_id)
    return ValueBody(await delete_endpoint(parts.database, endpoint_id, actor=principal.actor))


@changes.post("/webhooks/endpoints/{endpoint_id}/enable", response_model=EnabledEndpoint, responses=answers(404, 409))
async def post_enable(
    request: Request, principal: WebhooksWrite, endpoint_id: EndpointId, body: EnableEndpoint
) -> JsonBody:
    """Enable an endpoint, and send or discard the messages that it missed."""
    parts = parts_of(request)
    await _visible(parts, principal, endpoint_id)
    endpoint, count = await enable_endpoint(
        parts.database, endpoint_id, send_held=body.held == "send", actor=principal.actor
    )
    return JsonBody({"endpoint": to_dict(endpoint), "held": body.held, "deliveries": count})


@changes.post("/webhooks/endpoints/{endpoint_id}/disable", response_model=WebhookEndpoint, responses=answers(404, 409))
async def post_disable(
    request: Request, principal: WebhooksWrite, endpoint_id: EndpointId, body: DisableEndpoint
) -> ValueBody:
    """Disable an endpoint. Its messages are held until it is enabled."""
    parts = parts_of(request)
    await _visible(parts, principal, endpoint_id)
    return ValueBody(await disable_endpoint(parts.database, endpoint_id, body.reason, actor=principal.actor))


@changes.post("/webhooks/endpoints/{endpoint_id}/rotate", response_model=WebhookSecret, responses=answers(404, 409))
async def post_rotate(
    request: Request, principal: WebhooksWrite, endpoint_id: EndpointId, body: RotateSecret
) -> ValueBody:
    """Replace the secret of an endpoint. Only this response contains the new secret."""
    await _visible(parts_of(request), principal, endpoint_id)
    secret = await _manager(request).rotate(endpoint_id, overlap_hours=body.overlap_hours, actor=principal.actor)
    return ValueBody(secret)


@router.get("/webhooks/endpoints/{endpoint_id}/secret", response_model=WebhookSecret, responses=answers(404, 409))
async def get_secret(request: Request, principal: SecretsManage, endpoint_id: EndpointId) -> ValueBody:
    """Return the secret of an endpoint. The audit log records the request."""
    await _visible(parts_of(request), principal, endpoint_id)
    return ValueBody(await _manager(request).reveal(endpoint_id, actor=principal.actor))


@router.get("/webhooks/secret", response_model=WebhookSecret, responses=answers(404, 409))
async def get_default_secret(request: Request, principal: SecretsManage, tenant: Tenant = None) -> ValueBody:
    """Return the secret that signs the webhooks of runs without their own secret. The audit log records the request."""
    owner = tenant_to_use(principal, tenant)
    return ValueBody(await _manager(request).reveal_default(owner, actor=principal.actor))


@changes.post("/webhooks/secret/rotate", response_model=WebhookSecret, responses=answers(404, 409))
async def post_rotate_default(request: Request, principal: WebhooksWrite, body: RotateDefaultSecret) -> ValueBody:
    """Create or replace the secret that signs the webhooks of runs without their own secret."""
    tenant = tenant_to_use(principal, body.tenant)
    secret = await _manager(request).rotate_default(tenant, overlap_hours=body.overlap_hours, actor=principal.actor)
    return ValueBody(secret)


@changes.post("/webhooks/endpoints/{endpoint_id}/test", response_model=WebhookAttempt, responses=answers(404, 409))
async def post_test(request: Request, principal: WebhooksWrite, endpoint_id: EndpointId) -> ValueBody:
    """Send a test message once and return the attempt. The endpoint's health does not change."""
    await _visible(parts_of(request), principal, endpoint_id)
    return ValueBody(await _manager(request).test(endpoint_id, actor=principal.actor))


@router.get("/webhooks/deliveries", response_model=DELIVERIES.schema, responses=answers(404))
async def get_deliveries(
    request: Request,
    principal: RunsRead,
    endpoint_id: Annotated[Key | None, Query()] = None,
    status: Annotated[DeliveryStatus | None, Query()] = None,
    type: Annotated[Name | None, Query()] = None,  # noqa: A002 - the word of the API
    run_id: Annotated[Key | None, Query()] = None,
    since: Annotated[Moment | None, Query(description="Only deliveries created at this time or later.")] = None,
    tenant: Tenant = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> JsonBody:
    """List deliveries, newest first."""
    found = await list_deliveries(
        parts_of(request).database,
        tenant=tenant_to_list(principal, tenant),
        endpoint=endpoint_id,
        status=None if status is None else status.value,
        type=type,
        run_id=run_id,
        since_us=None if since is None else moment_us(since),
        before=cursor,
        limit=limit,
    )
    return DELIVERIES.page(found, limit)


@router.get("/webhooks/deliveries/{delivery_id}", response_model=WebhookDeliveryLog, responses=answers(404))
async def get_delivery(request: Request, principal: RunsRead, delivery_id: DeliveryId) -> ValueBody:
    """Return a delivery with its body and every attempt.

    Without webhooks:write, only the names of its headers are shown.
    """
    found = await _visible_delivery(parts_of(request), principal, delivery_id)
    if Permission.WEBHOOKS_WRITE in principal.permissions:
        return ValueBody(found)
    return ValueBody(replace(found, attempts=tuple(_without_values(attempt) for attempt in found.attempts)))


@changes.post(
    "/webhooks/deliveries/{delivery_id}/replay",
    status_code=202,
    response_model=WebhookDelivery,
    responses=answers(404, 409),
)
async def post_replay(
    request: Request, principal: WebhooksWrite, delivery_id: DeliveryId, body: ReplayDelivery
) -> ValueBody:
    """Send a message again, with its id and the current secret. This is also allowed for disabled endpoints."""
    parts = parts_of(request)
    await _visible_delivery(parts, principal, delivery_id)
    replayed = await replay_delivery(parts.database, delivery_id, max_tries=body.max_tries, actor=principal.actor)
    return ValueBody(replayed, 202)


@changes.post("/webhooks/replay", status_code=202, response_model=WebhookReplay, responses=answers(404, 409))
async def post_replay_many(request: Request, principal: WebhooksWrite, body: ReplayDeliveries) -> ValueBody:
    """Send the newest matching messages again, at most a thousand per request."""
    replayed = await replay_many(
        parts_of(request).database,
        tenant_to_use(principal, body.tenant),
        endpoint=body.endpoint_id,
        status=body.status.value,
        type=body.type,
        run_id=body.run_id,
        since_us=None if body.since is None else moment_us(body.since),
        before=body.before,
        max_tries=body.max_tries,
        actor=principal.actor,
    )
    return ValueBody(replayed, 202)


def _manager(request: Request) -> WebhookManager:
    connection = parts_of(request).connection
    return WebhookManager(connection.database, connection.settings, connection.vault.keyring)


async def _visible(parts: Services, principal: Principal, endpoint_id: str) -> WebhookEndpoint:
    endpoint = await find_endpoint(parts.database, endpoint_id)
    if not may_see(principal, endpoint.tenant):
        raise unknown_endpoint(endpoint_id)
    return endpoint


async def _visible_delivery(parts: Services, principal: Principal, delivery_id: str) -> WebhookDeliveryLog:
    delivery = await read_delivery(parts.database, delivery_id)
    if not may_see(principal, delivery.tenant):
        raise unknown_delivery(delivery_id)
    return delivery


def _shown(principal: Principal, endpoint: WebhookEndpoint) -> WebhookEndpoint:
    # A URL or a header may contain a token of the receiver.
    if Permission.WEBHOOKS_WRITE in principal.permissions:
        return endpoint
    return replace(endpoint, url=f"{origin_of(endpoint.url)}/…", headers=dict.fromkeys(endpoint.headers, "…"))


def _without_values(attempt: WebhookAttempt) -> WebhookAttempt:
    names = attempt.request_headers
    return attempt if names is None else replace(attempt, request_headers=dict.fromkeys(names, "…"))
