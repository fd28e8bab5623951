"""Routers that prepare a route at its first request.

FastAPI inspects the function of a route and builds validators for its parameters and responses when the route is
declared. For hundreds of routes this is most of a server's start time, and most processes serve few of them. Response
models are used only for the OpenAPI description, because the functions of these routes return responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response
from starlette.routing import get_name
from starlette.types import Receive, Scope, Send

from runlane.domain.validation import MAX_COUNTED, too_many
from runlane.errors import InvalidRequest
from runlane.event_loop.offload import LARGE_BYTES, offload_if

# One thread prepares each route once. The threads of the event loop are not used because all of them may be occupied
# when a probe arrives.
_preparing: Final = ThreadPoolExecutor(1, "runlane-routes")
# A smaller body cannot have more invalid fields than can be described in some milliseconds.
_CHECKED_FROM_BYTES: Final = 32 * 1024


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

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()
        if self.body_field is None:
            return usual
        check = BodyCheck(self.body_field.field_info.annotation)

        async def handle(request: Request) -> Response:
            await check(request)
            return await usual(request)

        return handle

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


class BodyCheck:
    """Refuses a large body with thousands of invalid fields before FastAPI describes each of them.

    Such a description takes seconds and gigabytes. Other bodies are left to FastAPI.
    """

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation
        self._adapter: TypeAdapter[Any] | None = None

    async def __call__(self, request: Request) -> None:
        size = getattr(request, "body_size", None)
        size = len(await request.body()) if size is None else size
        if size > _CHECKED_FROM_BYTES and "json" in request.headers.get("content-type", "json"):
            await offload_if(size > LARGE_BYTES, self._check, await _content(request))

    def _check(self, content: Any) -> None:
        if self._adapter is None:
            self._adapter = TypeAdapter(self._annotation)
        try:
            self._adapter.validate_python(content, from_attributes=True)
        except ValidationError as error:
            if error.error_count() > MAX_COUNTED:
                raise InvalidRequest(f"The request is invalid: {too_many(error)}") from None


async def _content(request: Request) -> Any:
    """Return the content of a body; None if it is not JSON, which FastAPI reports."""
    try:
        return await request.json()
    except (ValueError, RecursionError):
        return None


class RawRouter(APIRouter):
    """A router of RawRoute, or of routes of a derived class."""

    def __init__(self, *, route_class: type[RawRoute] = RawRoute, **options: Any) -> None:
        super().__init__(route_class=route_class, **options)
