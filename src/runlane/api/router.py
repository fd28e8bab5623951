"""Routers that prepare a route at its first request.

FastAPI inspects the function of a route and builds validators for its parameters and responses when the route is
declared. For hundreds of routes this is most of a server's start time, and most processes serve few of them. Response
models are used only for the OpenAPI description, because the functions of these routes return responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.routing import get_name
from starlette.types import Receive, Scope, Send

# One thread prepares each route once. The threads of the event loop are not used because all of them may be occupied
# when a probe arrives.
_preparing: Final = ThreadPoolExecutor(1, "runlane-routes")


class RawRoute(APIRoute):
    """A route whose function returns a response."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        response_model: Any = None,
        responses: dict[int | str, dict[str, Any]] | None = None,
        methods: set[str] | list[str] | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        # An including router copies these options and the route table compares them. FastAPI derives the others.
        vars(self).update(options)
        self.path = path
        self.endpoint = endpoint
        self.methods = {method.upper() for method in methods or ["GET"]}
        self.name = get_name(endpoint) if name is None else name
        self.response_model = response_model
        self.responses = responses or {}
        self.stream_item_type = None

        def prepare() -> APIRoute:
            route = object.__new__(type(self))
            APIRoute.__init__(
                route, path, endpoint, response_model=None, methods=self.methods, name=self.name, **options
            )
            return route

        self.app = self._preparation = _Preparation(prepare)

    def __getattr__(self, name: str) -> Any:
        # A copy, and a route that is being prepared, have no preparation yet.
        if name.startswith("__") or "_preparation" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._preparation.route(), name)


class _Preparation:
    """An application that becomes the application of the prepared route at its first request.

    Copies of a route share it.
    """

    def __init__(self, prepare: Callable[[], APIRoute]) -> None:
        self._prepare = prepare
        self._route: APIRoute | None = None
        self._serve: Callable[[Scope, Receive, Send], Awaitable[None]] = self._serve_first

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._serve(scope, receive, send)

    def route(self) -> APIRoute:
        """Return the prepared route."""
        if self._route is None:
            self._route = self._prepare()
            self._serve = self._route.app
        return self._route

    async def _serve_first(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = await asyncio.get_running_loop().run_in_executor(_preparing, self.route)
        await route.app(scope, receive, send)


class RawRouter(APIRouter):
    """A router of RawRoute, or of routes of a derived class."""

    def __init__(self, *, route_class: type[RawRoute] = RawRoute, **options: Any) -> None:
        super().__init__(route_class=route_class, **options)
