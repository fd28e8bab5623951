"""Custom routes of a project: an ASGI application beside the API, with its own lifespan and middleware.

The paths of the API take precedence. If a route of the application has a path of the API, the server logs it at its
start. The application is called before requests are authenticated, because its routes are public unless they are
configured as protected.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import Request
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from runlane.api.auth import authenticate_route, refuse_with
from runlane.api.route_table import RouteTable
from runlane.domain.access import UserPrincipal
from runlane.domain.graph_registry import GraphSource, HttpOptions
from runlane.errors import ConfigurationError, GraphNotLoaded, RunlaneError
from runlane.graphs.loader import load_export

log = structlog.get_logger(__name__)


class CustomRoutes:
    """The custom application of a project."""

    def __init__(self, app: Starlette, *, authenticates: bool) -> None:
        self._app = app
        self.authenticates = authenticates
        self._state: dict[str, Any] = {}

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Run the lifespan of the application."""
        async with self._app.router.lifespan_context(self._app) as state:
            self._state = dict(state or {})
            yield

    def matches(self, scope: Scope) -> bool:
        """Return whether a route of the application has the path and the method of a request."""
        return any(route.matches(scope)[0] is Match.FULL for route in self._app.router.routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "state": {**scope.get("state", {}), **self._state}}, receive, send)

    def conflicts(self, own: RouteTable) -> list[tuple[str, str]]:
        """Return the method and path of the routes that cannot be reached because the API has the same path."""
        found: list[tuple[str, str]] = []
        for route in self._app.router.routes:
            path: str = getattr(route, "path", "")
            methods: set[str] = getattr(route, "methods", None) or set()
            for method in sorted(methods):
                scope: Scope = {"type": "http", "path": path, "root_path": "", "method": method}
                if own.has(scope):
                    found.append((method, path))
        return found


def report_conflicts(custom: CustomRoutes, own: RouteTable) -> None:
    """Log the routes that cannot be reached."""
    for method, path in custom.conflicts(own):
        log.warning("custom_route_not_reached", path=path, method=method, fix="the API has this path; use another")


class CustomRoutesFirst:
    """Pass requests to the application of a project if it has their path and the API does not."""

    def __init__(self, app: ASGIApp, custom: CustomRoutes, own: RouteTable) -> None:
        self._app = app
        self._custom = custom
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        custom = self._custom
        if scope["type"] not in ("http", "websocket") or not custom.matches(scope) or self._own.has(scope):
            await self._app(scope, receive, send)
            return
        if custom.authenticates:
            request = Request({**scope, "type": "http", "method": scope.get("method", "GET")})
            try:
                principal = await authenticate_route(request)
            except (RunlaneError, HTTPException) as error:
                await refuse_with(error, scope, receive, send)
                return
            if isinstance(principal, UserPrincipal):
                scope = {**scope, "user": principal.user}
        await custom(scope, receive, send)


def load_custom_routes(options: HttpOptions) -> CustomRoutes | None:
    """Load the application that the configuration file names. Raise ConfigurationError if it cannot be loaded."""
    if options.app is None:
        return None
    try:
        found = load_export(GraphSource("http.app", None, options.app, options.folder))
    except GraphNotLoaded as error:
        raise ConfigurationError(f'The application "{options.app}" of "http.app" cannot be loaded. {error}') from error
    if not isinstance(found, Starlette):
        raise ConfigurationError(
            f'"http.app" names a {type(found).__name__}. Name an application of FastAPI or Starlette.'
        )
    return CustomRoutes(found, authenticates=options.authenticates)
