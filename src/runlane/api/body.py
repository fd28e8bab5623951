"""Request bodies: enforce the size limit while the body arrives, and parse large bodies in a thread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runlane.api.error_responses import BodyTooLarge, problem
from runlane.api.router import RawRoute
from runlane.event_loop.offload import LARGE_BYTES

# An API key as JSON fits into this size.
SMALL_BYTES: Final = 4096


async def read_bounded(request: Request, most: int) -> bytes:
    """Return the body of a request. Raise HTTPException 413 as soon as it exceeds the limit."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise HTTPException(413, f"The request has more than {most} bytes. Send a smaller request.")
    return bytes(body)


class BodyLimit:
    """Reject a body by its declared length, or as soon as it exceeds the limit."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self._limit:
                error = BodyTooLarge(self._limit)
                await problem(413, "too_large", str(error.detail))(scope, receive, send)
                return
        arrived = 0

        async def counted() -> Message:
            nonlocal arrived
            message = await receive()
            if message["type"] == "http.request":
                arrived += len(message.get("body", b""))
                if arrived > self._limit:
                    raise BodyTooLarge(self._limit)
            return message

        await self._app(scope, counted, send)


class LargeBodyRoute(RawRoute):
    """A route that parses large bodies in a thread, so that the event loop continues with other requests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()

        async def handle(request: Request) -> Response:
            declared = request.headers.get("content-length", "")
            if declared.isdigit() and int(declared) <= LARGE_BYTES:
                return await usual(request)
            body = await request.body()
            return await usual(request if len(body) <= LARGE_BYTES else _LargeRequest(request, body))

        return handle


class _LargeRequest(Request):
    """A request whose body is in memory."""

    def __init__(self, request: Request, body: bytes) -> None:
        super().__init__(request.scope, request.receive)
        self._whole = body
        self._parsed = False
        self._content: Any = None

    async def body(self) -> bytes:
        return self._whole

    async def json(self) -> Any:
        if not self._parsed:
            self._content = await asyncio.to_thread(json.loads, self._whole)
            self._parsed = True
        return self._content


class SmallBodyRoute(RawRoute):
    """A route for callers without a key: it reads at most SMALL_BYTES before it parses anything."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await usual(_LargeRequest(request, await read_bounded(request, SMALL_BYTES)))

        return handle
