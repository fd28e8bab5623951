"""A TCP proxy between a process and Postgres that simulates failures of the network.

It can cut connections, leave the server with sessions whose client is gone, swallow everything, like a firewall that
has forgotten a connection, and lose answers, above all to commits, which leaves the client in doubt.
"""

from __future__ import annotations

import asyncio
import random
from typing import Self
from urllib.parse import urlsplit, urlunsplit

# How asyncpg sends the end of a transaction: a simple query.
COMMIT = b"commit\x00"


class Line:
    """A connection of a client and the matching one to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server

    def cut(self) -> None:
        self.client.close()
        self.server.close()


class Proxy:
    """An async context manager; `url` leads through the proxy."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._parts = parts
        self._target = (parts.hostname, parts.port or 5432)
        self._lines: set[Line] = set()
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._chance = random.Random(24)
        self._closed = False
        self._refusing = False
        self.doubt = 0.0
        self.doubts = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return urlunsplit(self._parts._replace(netloc=f"{self._parts.username}@127.0.0.1:{port}"))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self._closed = True
        self._flowing.set()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)

    def black_hole(self) -> None:
        """Keep every line open and let nothing through, in either direction, new lines included."""
        self._flowing.clear()

    def heal(self) -> None:
        """Cut the old lines and let new ones through again, like a rebooted router."""
        self.cut()
        self._flowing.set()

    def refuse(self) -> None:
        """Cut every line and close new ones at once, like a host whose server is down."""
        self._refusing = True
        self.cut()

    def accept(self) -> None:
        """Let new lines through again."""
        self._refusing = False

    def cut(self) -> None:
        """Close every line on both sides."""
        for line in self._lines:
            line.cut()

    def cut_clients(self) -> list[Line]:
        """Close every line on the clients' side only: the server does not notice it yet."""
        lines = list(self._lines)
        for line in lines:
            line.client.close()
        return lines

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._flowing.wait()
            if self._closed or self._refusing:
                return
            try:
                server_reader, server_writer = await asyncio.open_connection(*self._target)
            except OSError:
                return
            line = Line(writer, server_writer)
            self._lines.add(line)
            try:
                await asyncio.gather(
                    self._pump(reader, line, server_writer, doubtful=True),
                    self._pump(server_reader, line, writer, doubtful=False),
                    return_exceptions=True,
                )
            finally:
                self._lines.discard(line)
                line.cut()
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, line: Line, writer: asyncio.StreamWriter, *, doubtful: bool
    ) -> None:
        from_server = not doubtful
        while data := await _read(reader):
            await self._flowing.wait()
            # Statements that are transactions of their own carry no commit, so some of all messages are lost too.
            chance = self.doubt if data.endswith(COMMIT) else self.doubt / 5
            if doubtful and self._chance.random() < chance:
                self.doubts += 1
                # Half of them arrive, the others do not; the client gets no answer to either.
                line.client.close()
                if self._chance.random() < 0.5:
                    writer.write(data)
                    await writer.drain()
                    writer.write_eof()
                else:
                    writer.close()
                return
            writer.write(data)
            await writer.drain()
        if from_server:
            line.cut()
        elif not line.client.is_closing():
            # The client closed it. After `cut_clients` the side of the server stays open.
            line.cut()


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return what arrives, nothing after any end of the other side."""
    try:
        return await reader.read(65536)
    except OSError:
        return b""
