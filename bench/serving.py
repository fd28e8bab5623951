"""A serving process and the plainest client for it, a socket: the client's own cost stays out of the figures."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Self

import orjson

from bench.ground import Ground, Place
from bench.process import running

PATIENCE_SECONDS = 60


class Wire:
    """One kept-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self._reader = reader
        self._writer = writer
        self._host = f"host: 127.0.0.1:{port}\r\n"

    @classmethod
    async def open(cls, port: int) -> Self:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        return cls(reader, writer, port)

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the JSON of the answer."""
        content = b"" if body is None else orjson.dumps(body)
        head = f"{method} {path} HTTP/1.1\r\n{self._host}content-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return status, orjson.loads(await self._reader.readexactly(length))

    async def follow(self, path: str) -> asyncio.StreamReader:
        """A stream, from its first byte on."""
        self._writer.write(f"GET {path} HTTP/1.1\r\n{self._host}\r\n".encode())
        await self._reader.readuntil(b"\r\n\r\n")
        return self._reader

    def close(self) -> None:
        self._writer.transport.abort()


@asynccontextmanager
async def serving(ground: Ground, place: Place, *, redis: bool = True, worker: bool = False) -> AsyncGenerator[int]:
    """`runlane serve`, and a worker process beside it if wanted; the port."""
    port = free_port()
    environment = ground.environment(place)
    if redis:
        environment |= {"RUNLANE_REDIS_URL": place.redis_url, "RUNLANE_REDIS_PREFIX": place.queue}
    command = ["-m", "runlane", "serve", "bench.systems.runlane:app", "--port", str(port)]
    with running(command, environment, ground.log):
        await _ready(port)
        if not worker:
            yield port
            return
        with running(["-m", "runlane", "worker", "bench.systems.runlane:app"], environment, ground.log):
            yield port


async def _ready(port: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                wire = await Wire.open(port)
                status, _ = await wire.ask("GET", "/ready")
                wire.close()
                if status == 200:
                    return
            except (OSError, asyncio.IncompleteReadError):
                pass
            await asyncio.sleep(0.1)


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
