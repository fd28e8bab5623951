"""Requests of web pages on other origins (CORS), if a setting allows the origin.

This is not a middleware because streams send their responses after the middlewares of their requests have returned.
Clients send keys in headers, which a browser never adds by itself, so credentials are not allowed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

ANY_ORIGIN: Final = "*"
_EXPOSED: Final = (
    b"Location, Content-Location, X-Pagination-Total, X-Pagination-Next, Retry-After, "
    b"RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset"
)
_METHODS: Final = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
_PREFLIGHT_SECONDS: Final = "600"


class CrossOrigin:
    """Add the headers that let pages of these origins read responses, and respond to preflight requests."""

    def __init__(self, origins: Collection[str], exposed: Collection[str] = ()) -> None:
        self._origins = frozenset(origins)
        self._exposed = b", ".join((_EXPOSED, *(name.encode("latin-1") for name in exposed)))

    def allowed(self, scope: Scope) -> str | None:
        """Return the origin of a request if it is allowed, else None."""
        origin = _header(scope, b"origin")
        if origin is None or not (ANY_ORIGIN in self._origins or origin.lower() in self._origins):
            return None
        return origin

    async def answer_preflight(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Respond to a preflight request and return True. Return False for any other request."""
        if scope["method"] != "OPTIONS" or _header(scope, b"access-control-request-method") is None:
            return False
        origin = self.allowed(scope)
        headers = {"Vary": "Origin, Access-Control-Request-Headers"}
        if origin is not None:
            headers |= {
                "Access-Control-Allow-Origin": origin,
                "Access-Control-Allow-Methods": _METHODS,
                "Access-Control-Allow-Headers": _header(scope, b"access-control-request-headers") or "",
                "Access-Control-Max-Age": _PREFLIGHT_SECONDS,
            }
        await Response(status_code=204 if origin is not None else 400, headers=headers)(scope, receive, send)
        return True

    def with_headers(self, scope: Scope, send: Send) -> Send:
        """Return a function that sends responses with the headers for the origin of the request."""
        origin = self.allowed(scope)
        if origin is None:
            return send
        added = [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", self._exposed),
            (b"vary", b"Origin"),
        ]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                given: Any = message.get("headers", [])
                message = {**message, "headers": [*given, *added]}
            await send(message)

        return sending


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return value.decode("latin-1")
    return None
