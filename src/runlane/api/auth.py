"""Authentication and authorization of requests. Every route declares the permission it needs, or that it is public.

A server with keys rejects every request without a key. An open server listens on loopback only. The threat there is a
web page in the user's browser. So the Host must be a loopback name, which a rebound DNS name is not, and an Origin must
be the server's own. Any failure during the key lookup rejects the request.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from runlane.access.policy import LOCAL, require
from runlane.addresses import is_loopback
from runlane.api.browser_access import CrossSiteRefused, identify_browser, session_token
from runlane.api.cross_origin import ANY_ORIGIN
from runlane.api.error_responses import problem, refusal
from runlane.api.mcp.metadata import MCP_PATH, challenge
from runlane.api.serializers import ROOT
from runlane.api.services import parts_of
from runlane.api.stream_access import TOKEN_PARAMETER, identify_reader
from runlane.domain.access import KEY_PREFIX, Permission, Principal
from runlane.domain.action_link import LINK_PATH
from runlane.errors import RunlaneError, Unauthorized, Unavailable

if TYPE_CHECKING:
    from runlane.api.agent_auth.module import AuthModule

_bearer = HTTPBearer(auto_error=False, scheme_name="ApiKey", description="An API key: sk-rl- and 64 hex digits.")
_header = APIKeyHeader(
    name="x-api-key", auto_error=False, scheme_name="ApiKeyHeader", description="The same key, in LangGraph's header."
)

# The key in a request's scope for the principal.
_PRINCIPAL = "runlane.principal"
# Three kinds of requests have no key. The source of a webhook verifies its sender and limits its body. A browser that
# signs in sends its key in the body, which the route reads up to a small limit. An action link is its own credential
# and has no body.
_WITHOUT_KEY = ("/hooks/", "/api/v2/ui/session", LINK_PATH)
# The OpenAI-compatible paths.
_OPENAI = "/v1/"
# Requests for the contents of one memory. A node serves them while the database is unavailable.
_MEMORY_CONTENTS: Final = re.compile(
    rf"{ROOT}/memory/memories/[^/]+/(?:(?:entries|fragments)(?:/.+)?|search|await-commit)"
    "|/v0/(?:search|vaults/[^/]+/memories/[^/]+/(?:entries|contexts)(?:/.+)?)",
    re.DOTALL,
)
_RECALLED: Final = "runlane.recalled"
# The query parameter of a stream token.
_TOKEN_QUERY: Final = f"{TOKEN_PARAMETER}=".encode()
# The roots of the agent server's paths. The auth module authorizes requests to them.
_AGENT_ROOTS: Final = ("/assistants", "/threads", "/runs", "/store")
_AGENT_FOLDERS: Final = tuple(f"{root}/" for root in _AGENT_ROOTS)
STUDIO_HEADER: Final = "x-auth-scheme"
STUDIO_SCHEME: Final = "langsmith"
_WITH_A_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class RequestAccess(StrEnum):
    """How requests are authenticated."""

    KEYS = "keys"
    OPEN_ON_LOOPBACK = "open on loopback"


class RequiredPermission:
    """The permission that a route needs; None if any valid key may use the route."""

    def __init__(self, permission: Permission | None) -> None:
        self.permission = permission

    async def __call__(
        self,
        request: Request,
        sent: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None,
        header: Annotated[str | None, Security(_header)] = None,
    ) -> Principal:
        principal = await _identify(request, sent, header)
        if self.permission is not None:
            require(principal, self.permission)
        return principal


async def _identify(request: Request, sent: HTTPAuthorizationCredentials | None, header: str | None) -> Principal:
    known: Principal | None = request.scope.get(_PRINCIPAL)
    if known is None:
        parts = parts_of(request)
        if _TOKEN_QUERY in request.scope["query_string"] and request.method == "GET":
            known = await identify_reader(request)
        elif parts.auth_module is not None and is_agent_path(request.scope["path"]):
            known = await _identify_user(request, parts.auth_module, sent, header)
        elif parts.access == RequestAccess.OPEN_ON_LOOPBACK and not _has_key(request, header):
            known = LOCAL
        elif (
            "authorization" not in request.headers and header is None and (token := session_token(request)) is not None
        ):
            known = await identify_browser(request, token, parts.authenticator)
        else:
            known = await _identify_key(request, sent, header)
        request.scope[_PRINCIPAL] = known
    return known


async def _identify_key(request: Request, sent: HTTPAuthorizationCredentials | None, header: str | None) -> Principal:
    authenticator = parts_of(request).authenticator
    raw_key = header
    if "authorization" in request.headers:
        raw_key = None if sent is None else sent.credentials
    if not _MEMORY_CONTENTS.fullmatch(request.scope["path"]):
        return await authenticator.identify(raw_key)
    principal, request.scope[_RECALLED] = await authenticator.identify_or_recall(raw_key)
    return principal


async def _identify_user(
    request: Request, module: AuthModule, sent: HTTPAuthorizationCredentials | None, header: str | None
) -> Principal:
    """Return the user whom the auth module accepts.

    Studio marks its requests with a header, which any client can send. So these requests need a key of Runlane unless
    the server is open.
    """
    if not (module.studio and request.headers.get(STUDIO_HEADER, "") == STUDIO_SCHEME):
        return await module.identify(request)
    if parts_of(request).access == RequestAccess.OPEN_ON_LOOPBACK and not _has_key(request, header):
        return module.studio_user(LOCAL)
    principal = await _identify_key(request, sent, header)
    require(principal, Permission.RUNS_WRITE)
    return module.studio_user(principal)


def is_agent_path(path: str) -> bool:
    """Return whether a path belongs to the agent server."""
    return path.startswith(_AGENT_ROOTS) and (path + "/").startswith(_AGENT_FOLDERS)


async def authenticate(request: Request) -> Principal:
    """Return the principal, for code that runs before the check of the route. The lookup is done once per request."""
    return await _identify(request, await _bearer(request), await _header(request))


def known_principal(request: Request) -> Principal | None:
    """Return the principal of a request; None if the request was not authenticated."""
    return request.scope.get(_PRINCIPAL)


def is_recalled(request: Request) -> bool:
    """Return whether the key of a request was not checked, because the database is unavailable."""
    return bool(request.scope.get(_RECALLED))


async def identify_optional(request: Request) -> Principal | None:
    """Return the principal of a request to a public endpoint; None if it has neither a key nor a valid session.

    An invalid key raises Unauthorized, because its sender expects to be authenticated.
    """
    try:
        return await authenticate(request)
    except (Unauthorized, CrossSiteRefused):
        if "authorization" in request.headers or "x-api-key" in request.headers:
            raise
        return None


def _has_key(request: HTTPConnection, header: str | None) -> bool:
    """Return whether an open server must check the key of a request.

    LangGraph's clients also send keys of other services, and OpenAI's clients always send a key.
    """
    sent = request.headers.get("authorization")
    if sent is None:
        return header is not None and header.startswith(KEY_PREFIX)
    return not request.url.path.startswith(_OPENAI) or sent.partition(" ")[2].strip().startswith(KEY_PREFIX)


async def authenticate_socket(socket: HTTPConnection) -> Principal:
    """Return the principal of a WebSocket, from the key in the headers of its handshake."""
    parts, header = parts_of(socket), socket.headers.get("x-api-key")
    if parts.access == RequestAccess.OPEN_ON_LOOPBACK and not _has_key(socket, header):
        return LOCAL
    scheme, _, token = socket.headers.get("authorization", "").partition(" ")
    return await parts.authenticator.identify(token if scheme.lower() == "bearer" else header)


async def authenticate_route(request: Request) -> Principal:
    """Return the principal of a request for a project's custom route: a user of the auth module, or a key."""
    module = parts_of(request).auth_module
    sent, header = await _bearer(request), await _header(request)
    if module is not None:
        principal = await _identify_user(request, module, sent, header)
    else:
        principal = await _identify(request, sent, header)
    if is_recalled(request):
        # A custom route may have the path of a memory, and do anything.
        raise Unavailable("The API key cannot be checked at the moment. Retry later.")
    return principal


async def refuse_with(error: RunlaneError | HTTPException, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the response for a request that was not authenticated."""
    if isinstance(error, RunlaneError):
        response = refusal(error)
        if isinstance(error, Unauthorized) and scope["path"] == MCP_PATH:
            request = Request(scope)
            response.headers["WWW-Authenticate"] = challenge(request, parts_of(request).app.settings)
        await response(scope, receive, send)
        return
    code = "unauthorized" if error.status_code == 401 else "forbidden"
    await problem(error.status_code, code, str(error.detail), headers=error.headers)(scope, receive, send)


class AuthenticateFirst:
    """Authenticate before reading the body, so that anonymous callers cannot make the server parse one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and _is_decided_by_module(scope):
            # The handlers of the auth module authorize single requests, and a socket carries many. The HTTP paths have
            # the same function.
            await send(
                {"type": "websocket.close", "code": 4403, "reason": "Sockets are not served with an auth module."}
            )
            return
        if scope["type"] == "http" and scope["method"] in _WITH_A_BODY and not scope["path"].startswith(_WITHOUT_KEY):
            try:
                await authenticate(Request(scope))
            except (RunlaneError, HTTPException) as error:
                await refuse_with(error, scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_decided_by_module(scope: Scope) -> bool:
    return is_agent_path(scope["path"]) and scope["app"].state.parts.auth_module is not None


RunsRead = Annotated[Principal, Depends(RequiredPermission(Permission.RUNS_READ))]
RunsWrite = Annotated[Principal, Depends(RequiredPermission(Permission.RUNS_WRITE))]
WorkersView = Annotated[Principal, Depends(RequiredPermission(Permission.WORKERS_VIEW))]
WorkersManage = Annotated[Principal, Depends(RequiredPermission(Permission.WORKERS_MANAGE))]
KeysManage = Annotated[Principal, Depends(RequiredPermission(Permission.KEYS_MANAGE))]
SecretsManage = Annotated[Principal, Depends(RequiredPermission(Permission.SECRETS_MANAGE))]
DefinitionsWrite = Annotated[Principal, Depends(RequiredPermission(Permission.DEFINITIONS_WRITE))]
SchedulesWrite = Annotated[Principal, Depends(RequiredPermission(Permission.SCHEDULES_WRITE))]
WebhooksWrite = Annotated[Principal, Depends(RequiredPermission(Permission.WEBHOOKS_WRITE))]
Anyone = Annotated[Principal, Depends(RequiredPermission(None))]
EventsWrite = Annotated[Principal, Depends(RequiredPermission(Permission.EVENTS_WRITE))]
MemoryRead = Annotated[Principal, Depends(RequiredPermission(Permission.MEMORY_READ))]
MemoryWrite = Annotated[Principal, Depends(RequiredPermission(Permission.MEMORY_WRITE))]
MemoryAdmin = Annotated[Principal, Depends(RequiredPermission(Permission.MEMORY_ADMIN))]
AuditRead = Annotated[Principal, Depends(RequiredPermission(Permission.AUDIT_READ))]


class LoopbackOnly:
    """On open servers, reject requests that a browser sends for a site which no setting allows."""

    def __init__(self, app: ASGIApp, origins: Collection[str] = ()) -> None:
        self._app = app
        # An open server does not accept requests from every site, whatever the setting.
        self._origins = frozenset(origins) - {ANY_ORIGIN}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        refusal = None
        if not _names_loopback(host):
            refusal = f'This server is open on loopback only, and "{host}" is not a loopback name.'
        elif origin and origin not in (f"http://{host}", f"https://{host}") and origin not in self._origins:
            refusal = f'This server is open on loopback only and does not serve pages of "{origin}".'
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            # The socket is closed before it is accepted, so that the handshake of the page fails.
            await send({"type": "websocket.close", "code": 4403, "reason": refusal[:100]})
        else:
            await problem(403, "forbidden", refusal)(scope, receive, send)


def _names_loopback(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
