"""HTTP connections with limits: size and duration of a request, pipelined requests, total number of connections.

uvicorn limits neither the size of a request head nor the duration of a request, so a client without a key could fill
the memory or occupy every connection. The limits cost nothing for a request that arrives in one piece: timers are set
only for incomplete requests, and connections are compared only at the limit.

At the connection limit, the connections that have waited longest for a request are closed. If all of them serve a
request or a stream, further connections receive 503, except for the health paths.
"""

from __future__ import annotations

import asyncio
import heapq
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final, cast

import httptools
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from runlane.api.connection_refusals import (
    INVALID,
    MAX_PIPELINED,
    OVERLOADED,
    PIPELINED,
    ConnectionRefusal,
    only_health,
    refusal_response,
)
from runlane.settings import Settings

log = structlog.get_logger(__name__)

# The size of a header field in addition to its name and value, as in HTTP/2 (RFC 9113, 6.5.2): even an empty field
# takes memory.
FIELD_BYTES: Final = 32
# A body whose average rate is lower is rejected.
BODY_BYTES_PER_SECOND: Final = 1024
# The number of connections beyond the limit. They may use the health paths, and get 503 for other paths.
SPARE_CONNECTIONS: Final = 64
# How long a refused client may continue to send before the connection is reset. A reset would lose the response.
LINGER_SECONDS: Final = 2.0
# How long a client may read nothing of its response. A stream has a shorter limit and reports why it ends.
UNSENT_SECONDS: Final = 60.0
_NO_ROOM_SECONDS: Final = 0.1
# The number of files that a serving process opens in addition to connections: the database, the bus, logs.
_OTHER_FILES: Final = 64


class _Awaiting(Enum):
    """The part of a request that the client must send next."""

    REQUEST = "a request"
    HEAD = "the rest of the head"
    BODY = "the rest of the body"


class _Refused(Exception):
    """Stops the parser for a rejected request."""


@dataclass(slots=True)
class ConnectionLimits:
    """The limits of one server, and the time before which idle connections are not searched again."""

    head_bytes: int
    head_seconds: float
    body_seconds: float
    connections: int
    no_room_until: float = 0.0
    # A head with at most this many bytes cannot exceed the limit, because a header field takes at least three bytes.
    surely_small: int = field(init=False)

    def __post_init__(self) -> None:
        self.surely_small = 3 * self.head_bytes // (FIELD_BYTES + 1)

    @property
    def head_too_large(self) -> ConnectionRefusal:
        """The response to a request whose head is too large."""
        limit = f"{self.head_bytes} bytes (RUNLANE_API_MAX_HEAD_BYTES)"
        message = f"The request line and headers have more than {limit}. Send fewer or shorter headers."
        return ConnectionRefusal(431, "head_too_large", message)

    def too_slow(self, awaiting: _Awaiting) -> ConnectionRefusal:
        """The response to a request that did not arrive in time."""
        if awaiting is _Awaiting.BODY:
            message = (
                f"The request body arrived at less than {BODY_BYTES_PER_SECOND} bytes per second over "
                f"{self.body_seconds:g} s (RUNLANE_API_BODY_SECONDS). Send it again."
            )
        else:
            message = (
                f"The request head did not arrive within {self.head_seconds:g} s (RUNLANE_API_HEAD_SECONDS). "
                "Send it again."
            )
        return ConnectionRefusal(408, "request_timeout", message)


def limited_protocol(settings: Settings) -> type[HttpToolsProtocol]:
    """Return the protocol class for a server with these settings, as the argument `http` of `uvicorn.Config`."""
    limits = ConnectionLimits(
        settings.api_max_head_bytes,
        settings.api_head_seconds,
        settings.api_body_seconds,
        _possible_connections(settings.api_max_connections),
    )
    return type("Protocol", (LimitedProtocol,), {"limits": limits, "__slots__": ()})


def server_config(app: ASGIApp, settings: Settings, **options: Any) -> uvicorn.Config:
    """Return the configuration of a server that applies the limits of these settings."""
    return uvicorn.Config(
        app,
        http=limited_protocol(settings),
        # The protocol loads the WebSocket protocol when a client requests it.
        ws="none",
        ws_max_size=settings.api_max_body_bytes,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # The client's address and scheme in proxy headers are not used.
        proxy_headers=False,
        timeout_keep_alive=settings.api_keep_alive_seconds,
        **options,
    )


def _possible_connections(wanted: int) -> int:
    """Return the limit, or the number of connections that the limit on open files allows."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or files - SPARE_CONNECTIONS - _OTHER_FILES >= wanted:
        return wanted
    possible = max(1, files - SPARE_CONNECTIONS - _OTHER_FILES)
    log.info("connections_limited", connections=possible, wanted=wanted, open_files=files, fix="raise ulimit -n")
    return possible


class LimitedProtocol(HttpToolsProtocol):
    """One connection. `limits` is set by the subclass of each server."""

    # An instance with more than 30 attributes in its dictionary takes a kilobyte more, and there may be thousands.
    __slots__ = (
        "_body_bytes", "_check_head", "_completed", "_counted", "_counting", "_head_bytes", "_headed", "_loose_bytes",
        "_refused", "_timed", "_timed_body_bytes", "_timer", "_unsent",
    )  # fmt: skip
    limits: ClassVar[ConnectionLimits]

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._timer: asyncio.TimerHandle | None = None
        self._unsent: asyncio.TimerHandle | None = None
        self._timed: tuple[object, _Awaiting] | None = None
        self._timed_body_bytes = 0
        self._refused = False
        # uvicorn creates a new list of headers for each message, so the identity of these lists shows a message's
        # progress.
        self._headed: object = None
        self._completed: object = None
        self._check_head = False
        self._counting: object = None
        self._counted = 0
        self._head_bytes = 0
        self._loose_bytes = 0
        self._body_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._set_timer()
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self.resume_writing()
        super().connection_lost(exc)
        # uvicorn does not cancel this timer if the connection was reset; the timer would keep the connection in memory.
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        parser = self.parser
        if self._refused or parser is None:
            return
        self._unset_keepalive_if_required()
        message, completed, body_bytes = self.headers, self._completed, self._body_bytes
        if len(data) > self.limits.surely_small:
            self._check_head = True
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
                return
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.args[0] if isinstance(cause, _Refused) else INVALID)
            return
        if self._completed is self.headers and self._completed is not completed:
            # In the usual case, a whole request arrives in one piece.
            self._check_head = False
            self._loose_bytes = 0
            if self._timer is not None:
                self._cancel_timer()
        else:
            # The bytes belong neither to a new message nor to a body: the parser buffers an incomplete header field.
            loose = message is self.headers and body_bytes == self._body_bytes
            self._loose_bytes = self._loose_bytes + len(data) if loose else 0
            self._limit_incomplete()

    def handle_websocket_upgrade(self) -> None:
        # This is imported here because most servers have no sockets, and the library needs memory.
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

        if len(self.connections) > self.limits.connections:
            self._refuse(OVERLOADED)
            return
        # The limits of requests do not apply to a socket.
        self._cancel_timer()
        self.resume_writing()
        self.ws_protocol_class = WebSocketsSansIOProtocol
        super().handle_websocket_upgrade()

    def _should_upgrade_to_ws(self) -> bool:
        return True

    def on_headers_complete(self) -> None:
        self._headed = self.headers
        if self._check_head and self._head_is_too_large():
            raise _Refused(self.limits.head_too_large)
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _Refused(PIPELINED)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._completed = self.headers
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self.pause_writing()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unsent is None:
            self._unsent = self.loop.call_later(UNSENT_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unsent is not None:
            self._unsent.cancel()
            self._unsent = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        # A close waits until everything is sent. A client that reads nothing would delay it forever.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def waiting_until(self) -> float | None:
        """Return when this connection would be closed if no request arrives; None while it serves a request."""
        if self.timeout_keep_alive_task is not None:
            # The time is shifted as if the timeout were `head_seconds`, so that both kinds of connections are
            # comparable.
            return self.timeout_keep_alive_task.when() - self.timeout_keep_alive + self.limits.head_seconds
        if self._timer is not None and not self._serves():
            return self._timer.when()
        return None

    def evict(self) -> None:
        """Close the connection to free its place."""
        self.connections.discard(self)
        self.transport.abort()

    def _awaiting(self) -> _Awaiting:
        if self._completed is self.headers:
            return _Awaiting.REQUEST
        return _Awaiting.BODY if self._headed is self.headers else _Awaiting.HEAD

    def _limit_incomplete(self) -> None:
        """Limit the time for the missing part of a request and the size of the received part."""
        awaiting = self._awaiting()
        if self._timed != (self.headers, awaiting):
            self._set_timer()
        self._check_head = awaiting is _Awaiting.HEAD
        begun = awaiting is not _Awaiting.REQUEST
        if self._loose_bytes > self.limits.head_bytes or (begun and self._head_is_too_large()):
            self._refuse(self.limits.head_too_large)

    def _head_is_too_large(self) -> bool:
        """Count the header fields since the last call, including those after a chunked body."""
        headers = self.headers
        if self._counting is not headers:
            self._counting, self._counted, self._head_bytes = headers, 0, 0
        for name, value in headers[self._counted :]:
            self._head_bytes += len(name) + len(value) + FIELD_BYTES
        self._counted = len(headers)
        return self._head_bytes + len(self.url) > self.limits.head_bytes

    def _serves(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _set_timer(self) -> None:
        self._cancel_timer()
        awaiting = self._awaiting()
        self._timed = (self.headers, awaiting)
        self._timed_body_bytes = self._body_bytes
        seconds = self.limits.body_seconds if awaiting is _Awaiting.BODY else self.limits.head_seconds
        self._timer = self.loop.call_later(seconds, self._check_progress)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timed = None

    def _check_progress(self) -> None:
        self._timer = self._timed = None
        if self.transport.is_closing():
            return
        awaiting, serves = self._awaiting(), self._serves()
        if serves and (awaiting is not _Awaiting.BODY or self.flow.read_paused or self._body_arrives()):
            # The client waits for the response, or the body waits to be read here, or the body arrives fast enough.
            self._set_timer()
        elif awaiting is _Awaiting.HEAD or serves:
            self._refuse(self.limits.too_slow(awaiting))
        else:
            # No request has begun, or its response was already sent.
            self.timeout_keep_alive_handler()

    def _body_arrives(self) -> bool:
        arrived = self._body_bytes - self._timed_body_bytes
        return arrived >= BODY_BYTES_PER_SECOND * self.limits.body_seconds

    def _refuse(self, refusal: ConnectionRefusal) -> None:
        self._cancel_timer()
        self._refused = True
        self.pipeline.clear()
        if self._serves():
            if self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(refusal_response(refusal))
        # Further input is discarded until the client has read the response.
        self.transport.write_eof()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _make_room(self) -> None:
        limits = self.limits
        now = self.loop.time()
        if now >= limits.no_room_until:
            # Several connections are closed at once. If none is idle, the next search is delayed, so that a flood does
            # not cause one search per connection.
            oldest = heapq.nsmallest(limits.connections // 16 + 1, self._waiting())
            for _, _, connection in oldest:
                connection.evict()
            if not oldest:
                limits.no_room_until = now + _NO_ROOM_SECONDS
        if len(self.connections) > limits.connections + SPARE_CONNECTIONS:
            self.evict()
        elif len(self.connections) > limits.connections:
            self.app = only_health(self.app)

    def _waiting(self) -> Iterator[tuple[float, int, LimitedProtocol]]:
        for connection in cast("set[object]", self.connections):
            if isinstance(connection, LimitedProtocol) and connection is not self:
                until = connection.waiting_until()
                if until is not None:
                    yield until, id(connection), connection
