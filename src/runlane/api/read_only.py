"""Reject changes while the server is paused because the database was restored."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from runlane.api.error_responses import problem
from runlane.errors import Paused

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# A browser session changes nothing that runs depend on, and its pages show the restored data.
_ALLOWED: Final = frozenset({"/api/v2/ui/session"})


class ReadOnly:
    """Passes only requests that cannot change anything."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            # The messages of a socket may be commands. Readers can use the GET streams.
            error = Paused()
            await send({"type": "websocket.close", "code": 4000 + error.http_status, "reason": str(error)[:100]})
            return
        if scope["type"] == "http" and scope["method"] not in _SAFE and scope["path"] not in _ALLOWED:
            error = Paused()
            await problem(error.http_status, error.code, str(error))(scope, receive, send)
            return
        await self._app(scope, receive, send)
