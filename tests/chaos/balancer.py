"""A load balancer without stickiness: each connection goes to the next server that accepts it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Self
from urllib.parse import urlsplit


class Balancer:
    """An async context manager; `url` leads to the servers in turn. `used` counts the connections of each."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._targets: list[tuple[str, int]] = []
        self._next = 0
        self.route_to(urls)
        self.used: Counter[int] = Counter()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.WriteTransport] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def route_to(self, urls: Sequence[str]) -> None:
        """Send new connections to these servers."""
        self._targets = [(urlsplit(url).hostname or "", urlsplit(url).port or 80) for url in urls]
        self._next = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break every open connection."""
        for transport in list(self._open):
            transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with contextlib.suppress(OSError):
                back_reader, back_writer = await self._connect()
                ends = {writer.transport, back_writer.transport}
                self._open |= ends
                try:
                    await _exchange((reader, writer), (back_reader, back_writer))
                finally:
                    self._open -= ends
                    back_writer.close()
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        first, self._next = self._next, (self._next + 1) % len(self._targets)
        # Its own count, since other connections move the shared one meanwhile.
        for step in range(len(self._targets)):
            number = (first + step) % len(self._targets)
            with contextlib.suppress(OSError):
                streams = await asyncio.open_connection(*self._targets[number])
                self.used[number] += 1
                return streams
        raise ConnectionRefusedError("no server accepts connections")


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _exchange(client: Streams, server: Streams) -> None:
    """Copy both directions. When the server closes, or dies, the client's connection ends, too."""
    sending = asyncio.ensure_future(_copy(client[0], server[1]))
    try:
        await _copy(server[0], client[1])
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
