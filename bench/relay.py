"""A relay on the way to a server: passes bytes on, and notes when each piece went by."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.wire import HOST

_PIECE = 65536


class Relay:
    """`sent` is what the server said, piece by piece, with the moment before it was passed on (nanoseconds)."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.keep = False
        self.sent: list[tuple[int, bytes]] = []

    @classmethod
    @asynccontextmanager
    async def to(cls, target: int) -> AsyncGenerator[Relay]:
        """A relay to a port of this machine, for the length of a block."""
        relay = cls(target)
        server = await asyncio.start_server(relay._take, HOST, 0)
        relay.port = int(server.sockets[0].getsockname()[1])
        try:
            yield relay
        finally:
            server.close()
            for task in list(relay._tasks):
                task.cancel()
            await asyncio.gather(*relay._tasks, return_exceptions=True)

    def times(self, number: re.Pattern[bytes]) -> dict[int, int]:
        """When each number went by that the pattern finds."""
        return {int(found): at for at, data in self.sent for found in number.findall(data)}

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(HOST, self._target)
        for task in (
            asyncio.ensure_future(self._pass_on(reader, back, noted=False)),
            asyncio.ensure_future(self._pass_on(there, writer, noted=True)),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, noted: bool) -> None:
        with contextlib.suppress(OSError):
            try:
                while data := await reader.read(_PIECE):
                    if noted and self.keep:
                        self.sent.append((time.time_ns(), data))
                    writer.write(data)
                    await writer.drain()
            finally:
                writer.close()
