"""Forward a change of a memory to the node that owns it, and return the response of that node.

The owner authenticates the key of the caller and checks its permission; this process adds no authority of its own. A
request is forwarded at most once: a process that is not the owner rejects a forwarded request with 409 and the address
of the owner, so requests cannot circulate while the owner changes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

import structlog
from fastapi import Request
from starlette.responses import Response

from runlane.api.browser_access import session_token
from runlane.api.error_responses import refusal
from runlane.api.services import parts_of
from runlane.domain.memory import MAX_COMMIT_WAIT_SECONDS
from runlane.errors import MemoryOwnedElsewhere, MemoryOwnerUnreachable

if TYPE_CHECKING:
    import httpx2

log = structlog.get_logger(__name__)

# This header marks a forwarded request. Only its presence matters, not its value.
FORWARDED: Final = "runlane-forwarded"
_SENT: Final = (
    "authorization",
    "x-api-key",
    "accept",
    "content-type",
    "idempotency-key",
    "traceparent",
    "tracestate",
)
_RETURNED: Final = (
    "content-type",
    "memory-commit",
    "retry-after",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "www-authenticate",
)
_CONNECT_SECONDS: Final = 2.0
# The timeout is longer than the owner waits for a memory that another node is handing over to it.
_ANSWER_SECONDS: Final = 15.0
_MAX_CONNECTIONS: Final = 100


class MemoryForwarder:
    """Connections of this process to the nodes that own memories. They are opened at the first request."""

    def __init__(self) -> None:
        self._client: httpx2.AsyncClient | None = None

    async def send(self, request: Request, error: MemoryOwnedElsewhere) -> Response:
        """Send a request to the owner and return its response.

        Raise MemoryOwnerUnreachable if it does not arrive in time.
        """
        import httpx2

        body = await request.body()
        headers = {name: request.headers[name] for name in _SENT if name in request.headers}
        # The path is sent as the caller encoded it, because a decoded path could name another memory.
        path, query = request.scope["raw_path"], request.scope["query_string"]
        url = error.owner_url.rstrip("/") + path.decode("ascii") + (f"?{query.decode('ascii')}" if query else "")
        try:
            async with asyncio.timeout(_ANSWER_SECONDS + _asked_wait(request)):
                answer = await self._open().request(
                    request.method, url, content=body, headers={**headers, FORWARDED: error.memory_id}
                )
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, OSError) as problem:
            log.warning("memory_not_forwarded", owner=error.owner, url=error.owner_url, problem=repr(problem))
            raise MemoryOwnerUnreachable(error.memory_id, error.owner) from problem
        returned = {name: answer.headers[name] for name in _RETURNED if name in answer.headers}
        return Response(answer.content, answer.status_code, returned)

    def _open(self) -> httpx2.AsyncClient:
        import httpx2

        if self._client is None:
            self._client = httpx2.AsyncClient(
                # The whole exchange has its own timeout, which depends on the requested wait.
                timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
                limits=httpx2.Limits(max_connections=_MAX_CONNECTIONS),
                trust_env=False,
                follow_redirects=False,
            )
        return self._client

    async def close(self) -> None:
        """Close the connections. Safe to call twice."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


async def forward_to_owner(request: Request, error: Exception) -> Response:
    """Respond to a request for a memory of another node with the response of that node, or with its address."""
    owned = cast("MemoryOwnedElsewhere", error)
    forwarder = parts_of(request).forwarder
    if forwarder is None or not may_forward(request, owned):
        return refusal(owned)
    try:
        return await forwarder.send(request, owned)
    except MemoryOwnerUnreachable as problem:
        return refusal(problem)


def may_forward(request: Request, error: MemoryOwnedElsewhere) -> bool:
    """Return whether a request can be sent to the owner of its memory."""
    if parts_of(request).forwarder is None or FORWARDED in request.headers:
        return False
    if urlsplit(error.owner_url).scheme not in ("http", "https"):
        return False
    # The cookie of a browser session is valid only for the pages at this address; another node would refuse it.
    has_key = "authorization" in request.headers or "x-api-key" in request.headers
    return has_key or session_token(request) is None


def _asked_wait(request: Request) -> float:
    """Return how long the owner may wait for replication before it answers."""
    waits = request.query_params.get("wait") == "committed" or request.url.path.endswith("/await-commit")
    return MAX_COMMIT_WAIT_SECONDS if waits else 0.0
