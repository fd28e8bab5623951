"""The routes of the API by a distinctive segment of their paths, so that a request is compared with few routes.

FastAPI tries one route after another, and prepares the routes of an included router again when it first tries them.
With hundreds of routes, this takes milliseconds for each request and seconds for the first requests of a process.
"""

from __future__ import annotations

from copy import copy
from typing import Final

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute, Match, Route, WebSocketRoute, compile_path
from starlette.types import Receive, Scope, Send

from runlane.api.serializers import ROOT

# The distinctive segment of a path below this folder is the segment after it; of any other path, the first segment.
_FOLDER: Final = f"{ROOT}/"


class RouteTable:
    """Includes routers in an application and dispatches its requests."""

    def __init__(self, api: FastAPI) -> None:
        self._api = api
        # The application's own routes: its OpenAPI description.
        self._others = APIRouter(routes=list(api.router.routes), redirect_slashes=False)
        self._routers: dict[str, APIRouter] = {}
        self._dispatch = api.router.middleware_stack
        api.router.middleware_stack = self

    def include(self, router: APIRouter, prefix: str = "") -> None:
        """Add the routes of a router. The first route that matches a request handles it."""
        # The application includes the router only for the OpenAPI description.
        self._api.include_router(router, prefix=prefix)
        for route in router.routes:
            placed = _place(route, prefix)
            key = _key_of(placed.path)
            if "{" in key:
                raise ValueError(f"A route of {prefix or '/'} begins with a parameter: {key}. Begin it with a name.")
            self._routers.setdefault(key, APIRouter(redirect_slashes=False)).routes.append(placed)

    def has(self, scope: Scope) -> bool:
        """Return whether a route has the path of a request, with any method."""
        return any(route.matches(scope)[0] is not Match.NONE for route in self._routes_for(scope).routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._dispatch(scope, receive, send)
        else:
            await self._routes_for(scope).app(scope, receive, send)

    def _routes_for(self, scope: Scope) -> APIRouter:
        path: str = scope["path"]
        # No name or id contains NUL, which Postgres rejects, so such a path is that of nothing.
        key = "" if "\0" in path else _key_of(path.removeprefix(scope.get("root_path", "")))
        return self._routers.get(key, self._others)


def _place(route: BaseRoute, prefix: str) -> Route | WebSocketRoute:
    """Return a route below a prefix. The route shares the objects that FastAPI has prepared."""
    if not isinstance(route, Route | WebSocketRoute):
        raise TypeError(f"{route!r} has no path of its own. Add its routes to the router.")
    placed = copy(route)
    placed.path = f"{prefix}{route.path}"
    placed.path_regex, placed.path_format, placed.param_convertors = compile_path(placed.path)
    return placed


def _key_of(path: str) -> str:
    folder = _FOLDER if path.startswith(_FOLDER) else "/"
    return folder + path[len(folder) :].partition("/")[0]
