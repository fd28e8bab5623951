"""The limit on request bodies, enforced while they arrive: nothing over it is ever held in memory."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runlane.api.problems import BodyTooLarge, problem


class BodyLimit:
    """Refuses a body by its announced length, or at the byte that is too much."""

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
