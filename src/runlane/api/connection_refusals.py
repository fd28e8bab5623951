"""Responses to connections that the server refuses before it calls an application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import orjson
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from runlane.api.error_responses import problem

# The maximum of requests on a connection that wait behind the current request. One packet can contain thousands.
MAX_PIPELINED: Final = 32
_HEALTH_PATHS: Final = frozenset({"/health", "/live", "/ready"})
_FULL: Final = "The server has reached its connection limit (RUNLANE_API_MAX_CONNECTIONS). Retry later."


@dataclass(frozen=True, slots=True)
class ConnectionRefusal:
    """A response that the server sends without calling an application."""

    status: int
    code: str
    message: str


INVALID: Final = ConnectionRefusal(400, "bad_request", "The request is not valid HTTP.")
OVERLOADED: Final = ConnectionRefusal(503, "overloaded", _FULL)
PIPELINED: Final = ConnectionRefusal(
    429, "too_many_requests", f"More than {MAX_PIPELINED} requests wait on one connection. Wait for their responses."
)


def only_health(app: Any) -> Any:
    """Return an application that serves the health paths and refuses all others."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in _HEALTH_PATHS:
            await app(scope, receive, send)
            return
        headers = {"Retry-After": "1", "Connection": "close"}
        await problem(503, "overloaded", _FULL, headers=headers)(scope, receive, send)

    return answer


def refusal_response(refusal: ConnectionRefusal) -> bytes:
    """Return the bytes of the complete response."""
    body = orjson.dumps({"detail": refusal.message, "code": refusal.code, "message": refusal.message})
    head = (
        STATUS_LINE[refusal.status],
        b"content-type: application/json\r\ncontent-length: ",
        str(len(body)).encode(),
        b"\r\nconnection: close\r\n\r\n",
    )
    return b"".join((*head, body))
