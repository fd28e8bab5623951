"""The SSE answer: a plain ASGI stream that sends everything that waits in one go.

Starlette's streaming response costs several times more per event and per idle reader. A reader that does not take
what it is sent within a while is dropped; it can come back and resume by number.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runlane.api.frame import KEEPALIVE, comment
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


class Reader(Protocol):
    """What is sent: a follower of a run, or of a conversation."""

    @property
    def ended(self) -> bool: ...

    @property
    def complete(self) -> bool: ...

    @property
    def refusal(self) -> RunlaneError | None: ...

    async def next(self, timeout_seconds: float) -> bytes: ...

    def close(self) -> None: ...


class EventStream(Response):
    """Sends what a follower hands out until the run ends, the reader leaves or may not stay, or this process stops."""

    media_type = "text/event-stream"

    def __init__(self, follower: Reader) -> None:
        super().__init__()
        self._follower = follower

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streaming = asyncio.ensure_future(self._stream(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait([streaming, leaving], return_when=asyncio.FIRST_COMPLETED)
            if streaming.done():
                streaming.result()
        finally:
            for task in (streaming, leaving):
                task.cancel()
            with contextlib.suppress(BaseException):
                await asyncio.gather(streaming, leaving, return_exceptions=True)
            self._follower.close()

    async def _stream(self, send: Send) -> None:
        follower = self._follower
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        sent_any = False
        try:
            while not follower.ended:
                try:
                    waiting = await follower.next(KEEPALIVE_SECONDS)
                except Unavailable:
                    # The reader keeps its stream; it is told something, so that nothing between us gives it up.
                    await _send(send, comment("waiting for the database"))
                    await asyncio.sleep(UNAVAILABLE_SECONDS)
                    continue
                if waiting:
                    sent_any = True
                elif not follower.ended:
                    waiting = KEEPALIVE
                if waiting:
                    await _send(send, waiting)
            last = b""
            if follower.refusal is not None:
                last = comment(f"closed: {follower.refusal}")
            elif follower.complete and not sent_any:
                # A reader that came back after the end gets a word, so that it knows there is nothing to wait for.
                last = _COMPLETE
            await send({"type": "http.response.body", "body": last, "more_body": False})
        except TimeoutError:
            log.warning("reader_dropped", reason=f"it took nothing for {SEND_SECONDS:g} s")
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1):
                    await send({"type": "http.response.body", "body": comment("dropped: too slow"), "more_body": False})


async def _send(send: Send, body: bytes) -> None:
    async with asyncio.timeout(SEND_SECONDS):
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
