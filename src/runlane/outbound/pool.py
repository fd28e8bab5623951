"""The connections of a transport: limited in number, and kept open for a while between requests.

The cost of a request does not grow with the number of connections. An idle connection is examined when it is about to
be used, and closed when it was not used for some seconds.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from ssl import SSLContext
from typing import Any, Final, Self, cast

import httpcore2

from runlane.outbound.guard import Guard
from runlane.outbound.limits import MAX_CONNECTIONS
from runlane.outbound.stream import Stream

# The extension of a request that contains a function. It is called before the first byte of the request is sent.
BEFORE_SENDING: Final = "runlane.before_sending"
_IDLE_SECONDS: Final = 15.0

# Scheme, host and port.
_Key = tuple[bytes, bytes, int]


class _Connection:
    """A connection and the time at which it is closed if it is still idle."""

    __slots__ = ("expires_at", "http", "key", "stream")

    def __init__(self, key: _Key, origin: httpcore2.Origin, stream: Stream) -> None:
        self.key = key
        self.stream = stream
        self.http = httpcore2.AsyncHTTP11Connection(origin, stream, keepalive_expiry=_IDLE_SECONDS)
        self.expires_at = 0.0


class ConnectionPool:
    """Sends requests over HTTP/1.1. `certificates` returns the context of https connections."""

    def __init__(self, guard: Guard, certificates: Callable[[], SSLContext]) -> None:
        self._guard = guard
        self._certificates = certificates
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._active: set[_Connection] = set()
        # The connection that has been idle longest is the first one, here and in the list of its origin.
        self._idle: OrderedDict[_Connection, None] = OrderedDict()
        self._idle_of: dict[_Key, list[_Connection]] = {}
        self._closing: asyncio.TimerHandle | None = None

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        """Send a request and return the response. Its connection is in use until the body is closed."""
        extensions = cast("dict[str, Any]", request.extensions)
        timeouts: dict[str, float | None] = extensions.get("timeout", {})
        await self._wait_for_slot(timeouts.get("pool"))
        connection: _Connection | None = None
        try:
            origin = request.url.origin
            key = (origin.scheme, origin.host, origin.port)
            connection = self._idle_connection(key) or await self._open(key, origin, timeouts.get("connect"))
            self._active.add(connection)
            before_sending: Callable[[], None] | None = extensions.get(BEFORE_SENDING)
            if before_sending is not None:
                before_sending()
            response = await connection.http.handle_async_request(request)
        except BaseException:
            self._release(connection)
            raise
        answered = cast("Any", response)
        body = _Body(answered.stream, lambda: self._release(connection))
        return httpcore2.Response(
            response.status, headers=response.headers, content=body, extensions=answered.extensions
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection, also those in use."""
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        for connection in (*self._idle, *self._active):
            connection.stream.close()
        self._idle.clear()
        self._idle_of.clear()
        # Transports close their sockets in the next pass of the event loop, which may be its last one.
        await asyncio.sleep(0)

    async def _wait_for_slot(self, timeout: float | None) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(timeout):
                await self._slots.acquire()
        except TimeoutError:
            raise httpcore2.PoolTimeout("no connection became free in time") from None

    def _idle_connection(self, key: _Key) -> _Connection | None:
        """Return an idle connection to the origin that the server has not closed, if there is one."""
        while (connections := self._idle_of.get(key)) is not None:
            connection = connections[-1]
            self._forget(connection)
            if not connection.http.has_expired():
                return connection
            connection.stream.close()
        return None

    async def _open(self, key: _Key, origin: httpcore2.Origin, timeout: float | None) -> _Connection:
        if len(self._active) + len(self._idle) >= MAX_CONNECTIONS and self._idle:
            oldest = next(iter(self._idle))
            self._forget(oldest)
            oldest.stream.close()
        host = origin.host.decode("ascii")
        stream = await self._guard.connect(host, origin.port, timeout)
        if origin.scheme == b"https":
            certificates = self._certificates()
            certificates.set_alpn_protocols(["http/1.1"])
            stream = await stream.start_tls(certificates, host, timeout)
        return _Connection(key, origin, stream)

    def _release(self, connection: _Connection | None) -> None:
        """Take back the slot of a request, and its connection if the connection can be used again."""
        self._slots.release()
        if connection is None:
            return
        self._active.discard(connection)
        if not connection.http.is_idle():
            connection.stream.close()
            return
        connection.expires_at = asyncio.get_running_loop().time() + _IDLE_SECONDS
        self._idle[connection] = None
        self._idle_of.setdefault(connection.key, []).append(connection)
        if self._closing is None:
            self._close_at(connection.expires_at)

    def _forget(self, connection: _Connection) -> None:
        del self._idle[connection]
        connections = self._idle_of[connection.key]
        connections.remove(connection)
        if not connections:
            del self._idle_of[connection.key]

    def _close_at(self, moment: float) -> None:
        self._closing = asyncio.get_running_loop().call_at(moment, self._close_expired)

    def _close_expired(self) -> None:
        self._closing = None
        now = asyncio.get_running_loop().time()
        while self._idle:
            oldest = next(iter(self._idle))
            if oldest.expires_at > now:
                self._close_at(oldest.expires_at)
                return
            self._forget(oldest)
            oldest.stream.close()


class _Body:
    """The body of a response, which gives its connection back when it is closed."""

    def __init__(self, stream: Any, release: Callable[[], None]) -> None:
        self._stream = stream
        self._release = release
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async with aclosing(self._stream.__aiter__()) as pieces:
            async for piece in pieces:
                yield piece

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._stream.aclose()
        finally:
            self._release()
