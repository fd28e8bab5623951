"""Browser sessions, and the information that a page needs about its server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from runlane.access.policy import tenant_to_list
from runlane.api.auth import Anyone, RequestAccess, identify_optional
from runlane.api.body import SmallBodyRoute
from runlane.api.browser_access import delete_cookies, require_own_page, session_token, set_cookie
from runlane.api.client_side import client_side
from runlane.api.error_responses import answers
from runlane.api.router import RawRouter
from runlane.api.routes.runs import MAX_IDS
from runlane.api.schemas.fields import MAX_BATCH, MAX_BULK, MAX_PAGE
from runlane.api.schemas.ui import SESSIONS, InfoFeatures, InfoLimits, InfoRetention, ServerInfo, SignIn
from runlane.api.serializers import JsonBody
from runlane.api.services import Services, parts_of
from runlane.domain.access import Permission, Principal
from runlane.domain.tags import MAX_TAGS
from runlane.errors import Conflict, NotFound
from runlane.observability import tracing
from runlane.store.access.browser_sessions import create_session, end_session, find_session, list_sessions
from runlane.store.sql.migrations import HEAD
from runlane.version import VERSION

# Signing in and out needs no key in a header.
public = RawRouter(tags=["dashboard"], route_class=SmallBodyRoute)
router = RawRouter(tags=["dashboard"])

SessionId = Annotated[str, Path(description="The session's id.", max_length=64)]


@public.get("/info", response_model=ServerInfo, responses=answers())
async def get_server_info(request: Request) -> JsonBody:
    """Return the version and whether a key is needed. With a valid key, add features, limits and retention."""
    parts = parts_of(request)
    principal = await identify_optional(request)
    info = ServerInfo(
        version=VERSION,
        sign_in_required=parts.access != RequestAccess.OPEN_ON_LOOPBACK,
        server_time=datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
    )
    if principal is not None:
        info = _details(request, parts, info)
    return JsonBody(info.model_dump(), headers={"Cache-Control": "no-store"})


def _details(request: Request, parts: Services, info: ServerInfo) -> ServerInfo:
    settings = parts.app.settings
    bus = parts.connection.bus
    return info.model_copy(
        update={
            "base_path": client_side(request).prefix,
            "schema_revision": HEAD,
            "trace_url": settings.trace_url,
            "features": InfoFeatures(
                wakeups=bus.kind,
                connected=bus.reaches_others,
                database=parts.database.dialect,
                secrets=parts.connection.vault.keyring.usable,
                worker=parts.worker is not None,
                tracing=tracing.provider() is not None,
                action_links=settings.action_links,
            ),
            "limits": InfoLimits(
                page=MAX_PAGE,
                ids=MAX_IDS,
                batch=MAX_BATCH,
                bulk=MAX_BULK,
                body_bytes=settings.api_max_body_bytes,
                input_bytes=settings.max_input_bytes,
                tags=MAX_TAGS,
                streams_per_key=settings.api_max_streams_per_key,
            ),
            "retention": InfoRetention(
                runs_days=settings.retention_days,
                events_days=settings.events_retention_days,
                audit_days=settings.audit_retention_days,
                webhooks_days=settings.webhook_retention_days,
            ),
        }
    )


@public.post("/ui/session", status_code=204, response_class=Response, responses=answers(409, 413, 429))
async def post_session(request: Request, body: SignIn) -> Response:
    """Sign a browser in: exchange a valid key for a cookie that scripts cannot read.

    The request must come from a page of this server and have the header `X-Runlane-UI`.
    """
    parts = parts_of(request)
    require_own_page(request)
    if parts.access == RequestAccess.OPEN_ON_LOOPBACK:
        raise Conflict("This server is open to programs on its machine and has no sign-in. Use it without a key.")
    side = client_side(request)
    parts.sign_ins.count(side.address)
    principal = await parts.authenticator.identify(body.key.strip())
    await _end_current(request, parts)
    token = await create_session(parts.database, principal, side.address, request.headers.get("user-agent", ""))
    response = Response(status_code=204, headers={"Cache-Control": "no-store"})
    set_cookie(response, token, side)
    return response


@public.delete("/ui/session", status_code=204, response_class=Response, responses=answers())
async def delete_session(request: Request) -> Response:
    """Sign the browser out. The request can be repeated safely."""
    require_own_page(request)
    await _end_current(request, parts_of(request))
    response = Response(status_code=204, headers={"Cache-Control": "no-store"})
    delete_cookies(response, client_side(request))
    return response


@router.get("/ui/sessions", response_model=SESSIONS.schema, responses=answers())
async def get_sessions(request: Request, principal: Anyone) -> JsonBody:
    """List the browser sessions of the caller's key; with `keys:manage`, of every key of the tenant."""
    tenant, only_key = _own(principal)
    found = await list_sessions(parts_of(request).database, tenant=tenant, only_key=only_key)
    return SESSIONS.all([session.marked(session.id == principal.session_id) for session in found])


@router.delete("/ui/sessions/{session_id}", status_code=204, response_class=Response, responses=answers(404))
async def delete_one_session(request: Request, principal: Anyone, session_id: SessionId) -> Response:
    """End a session, at once and everywhere."""
    tenant, only_key = _own(principal)
    await end_session(parts_of(request).database, session_id, actor=principal.actor, tenant=tenant, only_key=only_key)
    return Response(status_code=204)


def _own(principal: Principal) -> tuple[str | None, str | None]:
    """Return the tenant and the key whose sessions the principal may see; None for all."""
    manages = Permission.KEYS_MANAGE in principal.permissions
    return tenant_to_list(principal), None if manages else principal.key_id


async def _end_current(request: Request, parts: Services) -> None:
    token = session_token(request)
    found = None if token is None else await find_session(parts.database, token)
    if found is None:
        return
    try:
        await end_session(
            parts.database, found.id, actor=found.principal.actor, tenant=None, only_key=found.principal.key_id
        )
    except NotFound:
        return  # another request of the same browser has ended the session
