"""The SSE response: a plain ASGI stream that sends all pending frames at once.

Starlette's streaming response costs several times more per event and per idle reader. A reader that does not read for
SEND_SECONDS is dropped; it can reconnect and resume by number. There may be thousands of readers that stay for hours.
So a stream begins after its request has returned, when the middleware, parameters and exit stacks of the request are
freed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

import structlog
from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runlane.api.browser_responses import for_browsers, without_base_path
from runlane.api.cross_origin import CrossOrigin
from runlane.api.sse_encoding import KEEPALIVE, comment
from runlane.errors import RunlaneError, Unavailable

log = structlog.get_logger(__name__)

KEEPALIVE_SECONDS = 15.0
SEND_SECONDS = 30.0
UNAVAILABLE_SECONDS = 1.0
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_COMPLETE = b'data: {"type":"stream_complete"}\n\n'
# The key in a request's scope for the streams that run after the request.
_STREAMS = "runlane.streams"


class StreamingApi(FastAPI):
    """Runs the streams of requests after the requests have returned."""

    cross_origin: CrossOrigin | None = None
    base_path: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if self.base_path is not None:
            scope = without_base_path(scope, self.base_path)
        send = for_browsers(scope, send)
        if self.cross_origin is not None:
            if await self.cross_origin.answer_preflight(scope, receive, send):
                return
            send = self.cross_origin.with_headers(scope, send)
        streams: list[Callable[[Send], Awaitable[None]]] = []
        # The request gets a copy of the scope, because the server keeps its own scope as long as the stream lasts.
        await super().__call__({**scope, _STREAMS: streams}, receive, send)
        for stream in streams:
            await stream(send)


class StreamFollower(Protocol):
    """A follower of a run or of a conversation."""

    @property
    def ended(self) -> bool: ...

    @property
    def complete(self) -> bool: ...

    @property
    def refusal(self) -> RunlaneError | None: ...

    async def next(self, timeout_seconds: float) -> bytes: ...

    def close(self) -> None: ...


class EventStream(Response):
    """Send frames until the run ends, the reader disconnects or loses access, or this process stops.

    `when_left` is called if the reader disconnects before the end.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        follower: StreamFollower,
        headers: Mapping[str, str] | None = None,
        when_left: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__()
        self._follower = follower
        self._more_headers = [
            (name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()
        ]
        self._when_left = when_left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_STREAMS].append(partial(self.run, receive))

    async def run(self, receive: Receive, send: Send) -> None:
        """Stream until the end, or until the reader disconnects."""
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None) as stay:
                    leaving.add_done_callback(partial(_end_stream, stay))
                    await self._stream(send)
            if self._when_left is not None and leaving.done() and not self._follower.ended:
                await self._when_left()
        finally:
            leaving.cancel()
            with contextlib.suppress(BaseException):  # the follower is closed even if the stream fails
                await leaving
            self._follower.close()

    async def begin(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the head of the response."""
        await send({"type": "http.response.start", "status": 200, "headers": [*headers, *self._more_headers]})

    async def _stream(self, send: Send) -> None:
        follower = self._follower
        await self.begin(send, _HEADERS)
        sent_any = False
        try:
            while not follower.ended:
                try:
                    waiting = await follower.next(KEEPALIVE_SECONDS)
                except Unavailable:
                    # The stream stays open. The comment keeps proxies from closing an idle connection.
                    await send_piece(send, comment("waiting for the database"))
                    await asyncio.sleep(UNAVAILABLE_SECONDS)
                    continue
                if waiting:
                    sent_any = True
                elif not follower.ended:
                    waiting = KEEPALIVE
                if waiting:
                    await send_piece(send, waiting)
            last = b""
            if follower.refusal is not None:
                last = comment(f"closed: {follower.refusal}")
            elif follower.complete and not sent_any:
                # This frame informs a reader that reconnects after the end that nothing will follow.
                last = _COMPLETE
            await send({"type": "http.response.body", "body": last, "more_body": False})
        except TimeoutError:
            log.warning("reader_dropped", reason=f"it read nothing for {SEND_SECONDS:g} s")
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1):
                    await send({"type": "http.response.body", "body": comment("dropped: too slow"), "more_body": False})


async def send_piece(send: Send, body: bytes) -> None:
    """Send a part of a body. Raise TimeoutError if the reader does not read."""
    async with asyncio.timeout(SEND_SECONDS):
        await send({"type": "http.response.body", "body": body, "more_body": True})


def _end_stream(stay: asyncio.Timeout, _: object) -> None:
    with contextlib.suppress(RuntimeError):  # the stream has just ended
        stay.reschedule(-math.inf)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
