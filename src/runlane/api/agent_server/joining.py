"""Responses that are sent when a run has ended. Until then, a line break is sent at intervals, which JSON allows before
a value, so that neither a client nor a proxy closes the connection of a long run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import orjson
from starlette.types import Send

from runlane.api.sse import KEEPALIVE_SECONDS, UNAVAILABLE_SECONDS, EventStream, StreamFollower, send_piece
from runlane.errors import Unavailable

_HEADERS: Final = [(b"content-type", b"application/json"), (b"cache-control", b"no-cache")]


class JoinAnswer(EventStream):
    """Send the JSON that `answer` returns when the followed run has ended."""

    media_type = "application/json"

    def __init__(
        self,
        follower: StreamFollower,
        answer: Callable[[], Awaitable[Any]],
        headers: Mapping[str, str],
        when_left: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(follower, headers, when_left)
        self._answer = answer

    async def _stream(self, send: Send) -> None:
        follower = self._follower
        await self.begin(send, _HEADERS)
        while not follower.ended:
            try:
                await follower.next(KEEPALIVE_SECONDS)
            except Unavailable:
                await asyncio.sleep(UNAVAILABLE_SECONDS)
            if not follower.ended:
                await send_piece(send, b"\n")
        if not follower.complete:
            # The body stays incomplete, so that the client repeats the request, here or at another server.
            return
        body = orjson.dumps(await self._answer(), option=orjson.OPT_NON_STR_KEYS)
        await send({"type": "http.response.body", "body": body, "more_body": False})
