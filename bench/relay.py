"""A TCP relay in front of a server that records the time of each chunk."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from bench.http_client import HOST

_CHUNK_BYTES = 65536


class Relay:
    """`sent` holds the chunks of the server with the time before each was forwarded, in nanoseconds."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.recording = False
        self._away = False
        self.sent: list[tuple[int, bytes]] = []

    @classmethod
    @asynccontextmanager
    async def to(cls, target: int) -> AsyncGenerator[Relay]:
        """Open a relay to a local port for the duration of a block."""
        relay = cls(target)
        server = await asyncio.start_server(relay._accept, HOST, 0)
        relay.port = int(server.sockets[0].getsockname()[1])
        try:
            yield relay
        finally:
            server.close()
            for task in list(relay._tasks):
                task.cancel()
            await asyncio.gather(*relay._tasks, return_exceptions=True)

    def times(self, number: re.Pattern[bytes]) -> dict[int, int]:
        """Return the time of each number that the pattern finds."""
        return {int(found): at for at, data in self.sent for found in number.findall(data)}

    def leave(self) -> None:
        """Cut all connections and close new ones at once, as a host does whose server is down."""
        self._away = True
        for task in list(self._tasks):
            task.cancel()

    def come_back(self) -> None:
        """Accept connections again."""
        self._away = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._away:
            writer.close()
            return
        upstream, back = await asyncio.open_connection(HOST, self._target)
        for task in (
            asyncio.ensure_future(self._forward(reader, back, recorded=False)),
            asyncio.ensure_future(self._forward(upstream, writer, recorded=True)),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, recorded: bool) -> None:
        with contextlib.suppress(OSError):
            try:
                while data := await reader.read(_CHUNK_BYTES):
                    if recorded and self.recording:
                        self.sent.append((time.time_ns(), data))
                    writer.write(data)
                    await writer.drain()
            finally:
                writer.close()
