"""Request bodies: enforce the size limit while the body arrives, and parse large bodies in a thread."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runlane.api.auth import known_principal
from runlane.api.error_responses import BodyTooLarge, problem
from runlane.api.router import RawRoute
from runlane.event_loop.offload import LARGE_BYTES

# An API key as JSON fits into this size.
SMALL_BYTES: Final = 4096
# The large bodies of a tenant in progress, in bodies of the largest size.
_CONCURRENT: Final = 4


async def read_bounded(request: Request, most: int) -> bytes:
    """Return the body of a request. Raise HTTPException 413 as soon as it exceeds the limit."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise HTTPException(413, f"The request has more than {most} bytes. Send a smaller request.")
    return bytes(body)


class BodiesLimited(HTTPException):
    """A tenant has too many bytes of large bodies in progress."""

    code = "bodies_limited"

    def __init__(self) -> None:
        super().__init__(
            429,
            f"The tenant is sending more than {_CONCURRENT} requests of the largest size at once. Wait for their "
            "responses, or send smaller requests.",
            {"Retry-After": "1"},
        )


class _LargeBody:
    """The bytes of one large body, counted for its tenant until the response begins. A small body is not counted."""

    def __init__(self, counts: Counter[str], most: int, scope: Scope) -> None:
        self._counts = counts
        self._most = most
        self._scope: Scope = scope
        self._arrived = 0
        self._owner = ""

    def add(self, size: int) -> None:
        """Count bytes that have arrived. Raise BodiesLimited if the tenant has too many."""
        self._arrived += size
        if self._arrived <= LARGE_BYTES or not self._scope:
            return
        if not self._owner:
            principal = known_principal(Request(self._scope))
            # A path without a key, such as that of a webhook source, counts on its own.
            self._owner = self._scope["path"] if principal is None else principal.tenant
            size = self._arrived
        self._counts[self._owner] += size
        if self._counts[self._owner] > self._most:
            raise BodiesLimited

    def release(self) -> None:
        """Stop counting the body. Safe to call twice."""
        if self._owner:
            self._counts[self._owner] -= self._arrived
            if self._counts[self._owner] <= 0:
                del self._counts[self._owner]
        self._arrived, self._owner = 0, ""

    def close(self) -> None:
        """Release the body and the request. A stream that begins now would keep the request alive through the scope."""
        self.release()
        self._scope = {}


class BodyLimit:
    """Reject a body by its declared length, or as soon as it exceeds the limit.

    A parsed body takes up to twenty times its bytes, so the bytes of large bodies are also limited for each tenant.
    """

    def __init__(self, app: ASGIApp, limit: int, counts: Counter[str]) -> None:
        """`counts` are the bytes of large bodies in progress, by tenant."""
        self._app = app
        self._limit = limit
        self._counts = counts

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
        large = _LargeBody(self._counts, _CONCURRENT * self._limit, scope)

        async def counted() -> Message:
            nonlocal arrived
            message = await receive()
            if message["type"] == "http.request":
                size = len(message.get("body", b""))
                arrived += size
                if arrived > self._limit:
                    raise BodyTooLarge(self._limit)
                large.add(size)
            return message

        async def answering(message: Message) -> None:
            large.release()
            await send(message)

        try:
            await self._app(scope, counted, answering)
        finally:
            large.close()


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
