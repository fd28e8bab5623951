"""Security headers of every response to a browser, and the path prefix of a proxy.

This is not a middleware because streams send their responses after the middlewares of their requests have returned.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.types import Message, Scope, Send

# A cache must not store a response that a cookie gave access to, and a page of another site must not load it as a
# script or image.
_ADDED: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def for_browsers(scope: Scope, send: Send) -> Send:
    """Return a function that sends responses.

    A response to a request with a cookie gets headers that prevent caching.
    """
    if not any(name == b"cookie" for name, _ in scope["headers"]):
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given: Any = message.get("headers", [])
            names = {name for name, _ in given}
            message = {**message, "headers": [*given, *(pair for pair in _ADDED if pair[0] not in names)]}
        await send(message)

    return sending


def without_base_path(scope: Scope, base_path: str) -> Scope:
    """Return the request without the prefix that a proxy did not remove."""
    path: str = scope["path"]
    if path != base_path and not path.startswith(f"{base_path}/"):
        return scope
    raw: bytes = scope.get("raw_path") or b""
    prefix = base_path.encode()
    return {
        **scope,
        "path": path.removeprefix(base_path) or "/",
        "raw_path": (raw.removeprefix(prefix) or b"/") if raw.startswith(prefix) else raw,
    }
