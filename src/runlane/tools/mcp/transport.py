"""The HTTP transport below the library: it traces every request, limits every response, and raises no errors.

An error that reaches the library ends the whole connection with all calls on it. So a failed request reports its
failure to its caller, and the library receives a response that only contains the failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, cast

import httpx2

from runlane.domain.retry_after import retry_after_seconds
from runlane.errors import OutboundError, OutboundRefused, OutboundTooLarge
from runlane.tools.caller import ToolFailed
from runlane.tools.mcp.trace import TRACE, RequestTrace

_SESSION: Final = "mcp-session-id"
# The response to a notification is not needed, and the library sends nothing else before it arrives.
_NOTIFICATION: Final = b'"method":"notifications/'
_NOTICE_SECONDS: Final = 5.0
_POST_SECONDS: Final = 30.0
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


class BrokenBody(httpx2.StreamError):
    """A body is incomplete or too large. The library treats this as an error of one response, not of the connection."""

    def __init__(self) -> None:
        super().__init__("The response ended early.")


class TracedTransport(httpx2.AsyncBaseTransport):
    """A transport for one connection to the server with this name.

    With `apart`, responses arrive on another stream than the requests, as with old servers. A rejected request would
    then never get a response.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, name: str, most: int, *, apart: bool = False) -> None:
        self._inner = inner
        self._name = name
        self._most = most
        self._apart = apart
        self.flaw: ToolFailed | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response of the server, or a substitute that contains the failure."""
        trace = TRACE.get()
        posted = request.method == "POST"
        notice = posted and _NOTIFICATION in request.content[:100]
        if notice or trace is None:
            trace = RequestTrace()
        trace.session = _SESSION in request.headers
        seconds = _NOTICE_SECONDS if notice else _POST_SECONDS if posted and self._apart else None
        try:
            async with asyncio.timeout(seconds):
                response = await self._inner.handle_async_request(request)
        except (httpx2.HTTPError, OutboundError, TimeoutError, OSError) as error:
            trace.fail(self._failure(error))
            return _substitute(503)
        trace.status = response.status_code
        trace.retry_after = response.headers.get("retry-after")
        if posted and self._apart and response.status_code >= 300:
            await response.aclose()
            trace.fail(refusal(self._name, trace))
            return _substitute(202)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Body(cast("httpx2.AsyncByteStream", response.stream), response.headers, self._most, self._spoilt),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._inner.aclose()

    def _spoilt(self, *, large: bool) -> None:
        """Handle a body that cannot be read. If it contains the responses to many requests, all of them fail."""
        failure = too_large(self._name, self._most) if large else broken(self._name)
        trace = TRACE.get()
        if self._apart:
            self.flaw = failure
        elif trace is not None:
            trace.fail(failure)

    def _failure(self, error: Exception) -> ToolFailed:
        """Return the failure for an error of the library, without its text, which may contain a header or a URL."""
        if isinstance(error, OutboundRefused):
            message = f'The MCP server "{self._name}" must not be called. {error}'
            return ToolFailed("mcp_refused", message, begun=False)
        if isinstance(error, OutboundTooLarge):
            return ToolFailed("mcp_too_large", f'The MCP server "{self._name}" cannot be used. {error}')
        if isinstance(error, httpx2.LocalProtocolError):
            message = f'The request to the MCP server "{self._name}" cannot be sent: HTTP does not allow it.'
            return ToolFailed("mcp_refused", message, begun=False)
        if isinstance(error, _NOT_SENT):
            message = f'The MCP server "{self._name}" cannot be reached.'
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                message = f'The certificate of the MCP server "{self._name}" is not trusted, or is for another name.'
            return ToolFailed("mcp_unreachable", message, retryable=True, begun=False)
        return broken(self._name)


def broken(name: str) -> ToolFailed:
    """Return the failure for a connection that broke after the request was sent."""
    message = f'The connection to the MCP server "{name}" broke before the response arrived.'
    return ToolFailed("mcp_unreachable", message, retryable=True, begun=True)


def too_large(name: str, most: int) -> ToolFailed:
    """Return the failure for a response above the limit."""
    return ToolFailed("mcp_too_large", f'The MCP server "{name}" returned more than {most} bytes.')


def refusal(name: str, trace: RequestTrace) -> ToolFailed:
    """Return the failure for an HTTP status of 300 or more."""
    status = trace.status
    if status in (400, 404) and trace.session:
        message = f'The MCP server "{name}" has ended this session.'
        return ToolFailed("mcp_unreachable", message, retryable=True, begun=False)
    if status >= 500:
        message = f'The MCP server "{name}" returned status {status}.'
        return ToolFailed(
            "mcp_unreachable", message, retryable=True, retry_after_seconds=retry_after_seconds(trace.retry_after)
        )
    cure = " Check its token and headers." if status in (401, 403) else ""
    return ToolFailed(
        "mcp_refused",
        f'The MCP server "{name}" refused the request with status {status}.{cure}',
        retryable=status in (408, 425, 429),
        retry_after_seconds=retry_after_seconds(trace.retry_after) if status == 429 else None,
        begun=False,
    )


def _substitute(status: int) -> httpx2.Response:
    return httpx2.Response(status, headers={"content-type": "text/plain"}, content=b"")


class _Body(httpx2.AsyncByteStream):
    """A body with a size limit, which applies to each event of an event stream, otherwise to the whole body."""

    def __init__(
        self, stream: httpx2.AsyncByteStream, headers: httpx2.Headers, most: int, spoilt: Callable[..., None]
    ) -> None:
        self._stream = stream
        self._events = headers.get("content-type", "").lower().startswith("text/event-stream")
        self._most = most
        self._spoilt = spoilt

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for piece in self._stream:
                end = max(piece.rfind(b"\n\n"), piece.rfind(b"\r\n\r\n")) if self._events else -1
                size = len(piece) - end if end >= 0 else size + len(piece)
                if size > self._most:
                    self._spoilt(large=True)
                    raise BrokenBody
                yield piece
        except (httpx2.HTTPError, OutboundError, OSError):
            # The library resumes an interrupted event stream.
            if not self._events:
                self._spoilt(large=False)
            raise BrokenBody from None

    async def aclose(self) -> None:
        await self._stream.aclose()
