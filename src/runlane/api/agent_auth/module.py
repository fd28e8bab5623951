"""An auth module: a `langgraph_sdk.Auth` object of the project, loaded once when the server starts.

Requests are refused by default. A module that cannot be loaded stops the start. A request is refused if its handler
raises, returns an invalid value, or does not exist for a resource while other handlers exist.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import structlog
from fastapi import Request
from starlette.exceptions import HTTPException

from runlane.domain.access import Permission, Principal, UserPrincipal
from runlane.domain.access_rule import AccessRule, InvalidRule
from runlane.domain.graph_registry import AuthSource, GraphSource
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.errors import ConfigurationError, Forbidden, GraphNotLoaded
from runlane.graphs.loader import load_export

log = structlog.get_logger(__name__)

# The time after which a handler is aborted and the request refused.
HANDLER_SECONDS: Final = 10.0
USER_ROLE: Final = "user"
# The permissions that the paths of the agent server require. The handlers of the module decide about each request.
_USER_PERMISSIONS: Final = frozenset({Permission.RUNS_READ, Permission.RUNS_WRITE, Permission.SCHEDULES_WRITE})
_MAX_IDENTITY: Final = 500
# The parameters that an authenticate handler may declare.
_PARAMETERS: Final = frozenset(
    {"request", "body", "path", "method", "scope", "path_params", "query_params", "headers", "authorization"}
)
_REFUSED: Final = "The auth module refused the request."


class User(Mapping[str, Any]):
    """A user in the form that handlers of the module expect: fields are attributes and items."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields: dict[str, Any] = {
            "display_name": fields["identity"],
            "is_authenticated": True,
            "permissions": [],
            **fields,
        }

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(name) from None

    def __iter__(self) -> Any:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


class AuthModule:
    """The handlers of an auth module."""

    def __init__(self, auth: Any, source: AuthSource) -> None:
        from langgraph_sdk.auth import types

        self._types = types
        # The SDK has no public names for these handlers.
        self._authenticate: Any = auth._authenticate_handler  # noqa: SLF001
        self._handlers: Mapping[tuple[str, str], Sequence[Any]] = auth._handlers  # noqa: SLF001
        self._global: Sequence[Any] = auth._global_handlers  # noqa: SLF001
        self.studio = source.studio
        taken = set(inspect.signature(self._authenticate).parameters)
        if unknown := sorted(taken - _PARAMETERS):
            raise ConfigurationError(
                f'The authenticate handler of "{source.location}" takes {", ".join(unknown)}, which does not exist. '
                f"It may take {', '.join(sorted(_PARAMETERS))}."
            )
        if "body" in taken:
            raise ConfigurationError(
                f'The authenticate handler of "{source.location}" takes body. Requests are authenticated before their '
                "body is read; use headers."
            )
        self._taken = taken
        self.decides = bool(self._handlers or self._global)

    async def identify(self, request: Request) -> UserPrincipal:
        """Return the user of a request. Raise HTTPException 401 if the module does not accept the request."""
        try:
            given = {name: _argument(request, name) for name in self._taken}
            async with asyncio.timeout(HANDLER_SECONDS):
                if inspect.iscoroutinefunction(self._authenticate):
                    found = await self._authenticate(**given)
                else:
                    # A plain function may block, so it runs in a thread and the event loop continues.
                    found = await asyncio.to_thread(self._authenticate, **given)
        except Exception as error:
            raise _refused(error, 401, "authenticate") from error
        user = _user(found)
        if user is None:
            log.error("auth_module_failed", handler="authenticate", reason="it returned no identity")
            raise HTTPException(401, _REFUSED)
        return self.principal(user, DEFAULT_TENANT)

    def studio_user(self, principal: Principal) -> UserPrincipal:
        """Return the Studio user of a Runlane key, with at most the permissions of the key."""
        found = self.principal(self._types.StudioUser(principal.name, is_authenticated=True), principal.tenant)
        return replace(found, permissions=found.permissions & principal.permissions)

    def principal(self, user: Any, tenant: str) -> UserPrincipal:
        """Return the principal of a user."""
        identity = str(user.identity)
        return UserPrincipal(f"user:{identity}", identity, tenant, USER_ROLE, _USER_PERMISSIONS, user=user)

    async def decide(
        self, principal: UserPrincipal, resource: str, action: str, value: dict[str, Any]
    ) -> AccessRule | None:
        """Return the rule for an action; None if everything is allowed. Raise Forbidden if the action is refused.

        The handler may change `value`.
        """
        if not self.decides:
            return None
        handler = self._handler(resource, action)
        if handler is None:
            raise Forbidden(
                f"The auth module has no handler for {resource}.{action}, so it is refused. Add one: "
                f"@auth.on.{resource}.{action}"
            )
        user = principal.user
        context = self._types.AuthContext(
            permissions=list(user.permissions),
            user=user,
            resource=cast("Any", resource),
            action=cast("Any", action),
        )
        try:
            async with asyncio.timeout(HANDLER_SECONDS):
                return self._rule(await handler(ctx=context, value=value))
        except InvalidRule as error:
            log.exception("auth_module_failed", handler=f"{resource}.{action}", reason=str(error))
            raise Forbidden(_REFUSED) from error
        except Forbidden:
            raise
        except Exception as error:
            raise _refused(error, 403, f"{resource}.{action}") from error

    def _handler(self, resource: str, action: str) -> Any:
        """Return the most specific handler; None if none applies."""
        for key in ((resource, action), (resource, "*"), ("*", action)):
            if found := self._handlers.get(key):
                return found[-1]
        return self._global[-1] if self._global else None

    def _rule(self, found: Any) -> AccessRule | None:
        if found is None or found is True:
            return None
        if found is False:
            raise Forbidden(_REFUSED)
        if isinstance(found, Mapping):
            return AccessRule.parse(cast("Mapping[str, Any]", found))
        raise InvalidRule(f"a handler returned a {type(found).__name__} instead of a boolean or a filter")


def load_auth_module(source: AuthSource) -> AuthModule:
    """Load an auth module. Raise ConfigurationError if it cannot be loaded, so that no server starts without it."""
    try:
        from langgraph_sdk import Auth
    except ImportError:
        raise ConfigurationError(
            'The key "auth" needs the package langgraph-sdk. Install it: pip install "runlane[langgraph]"'
        ) from None
    try:
        found = load_export(GraphSource("auth", None, source.location, source.folder))
    except GraphNotLoaded as error:
        raise ConfigurationError(f'The auth module "{source.location}" cannot be loaded. {error}') from error
    if not isinstance(found, Auth):
        raise ConfigurationError(
            f'The auth module "{source.location}" is a {type(found).__name__}. Name an object of langgraph_sdk.Auth.'
        )
    auth: Any = found
    if auth._authenticate_handler is None:  # noqa: SLF001 - the SDK has no public name for it
        raise ConfigurationError(
            f'The auth module "{source.location}" has no authenticate handler. Add one: @auth.authenticate'
        )
    module = AuthModule(auth, source)
    if not module.decides:
        log.warning(
            "auth_module_without_rules", module=source.location, effect="every user may use everything", fix="@auth.on"
        )
    return module


def _refused(error: Exception, status: int, handler: str) -> HTTPException:
    """Return the HTTP error for an exception of a handler. An HTTPException keeps its status and text."""
    from langgraph_sdk.auth.exceptions import HTTPException as ModuleRefusal

    if isinstance(error, ModuleRefusal | HTTPException) and 400 <= error.status_code < 600:
        headers = None if error.headers is None else dict(error.headers)
        return HTTPException(error.status_code, error.detail, headers)
    if not isinstance(error, AssertionError):
        log.error("auth_module_failed", handler=handler, exc_info=error)
    return HTTPException(status, _REFUSED)


def _argument(request: Request, name: str) -> Any:
    scope = request.scope
    match name:
        case "request":
            return request
        case "scope":
            return scope
        case "path":
            return scope["path"]
        case "method":
            return scope["method"]
        case "path_params":
            return dict(scope.get("path_params") or {})
        case "query_params":
            return dict(request.query_params)
        case "headers":
            return dict(scope["headers"])
        case _:
            return request.headers.get("authorization")


def _user(found: Any) -> Any:
    """Return the user from the return value of an authenticate handler; None if it has no identity."""
    if isinstance(found, str):
        found = {"identity": found}
    if isinstance(found, Mapping):
        fields = cast("Mapping[str, Any]", found)
        identity: Any = fields.get("identity")
        user: Any = User(fields) if isinstance(identity, str) else None
    else:
        identity, user = getattr(found, "identity", None), found
    if not isinstance(identity, str) or not 0 < len(identity) <= _MAX_IDENTITY:
        return None
    if user.is_authenticated is False:
        return None
    return user if hasattr(user, "permissions") else User({"identity": identity})
