"""A minimal HTTP client, so that the client's own work does not distort the measurement."""

from __future__ import annotations

import asyncio
import time
from typing import Self

HOST = "127.0.0.1"


class HttpConnection:
    """One keep-alive connection; one request at a time."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._head = f"host: {HOST}:{port}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(HOST, self._port, limit=2**24)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._writer.close()

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request and return status and body of the response."""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}content-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
        return int(answer[9:12]), await self._reader.readexactly(length)

    async def post(self, path: str, body: bytes) -> bytes:
        """Send a request that must be accepted, and return the body of the response."""
        status, answer = await self.request("POST", path, body)
        if status != 202:
            raise RuntimeError(f"POST {path} returned {status}: {answer[:500]!r}")
        return answer


class Follower(asyncio.Protocol):
    """Reads one stream until the server ends it, and records each chunk with its time."""

    def __init__(self, port: int, path: str, key: str) -> None:
        self._request = (
            f"GET {path} HTTP/1.1\r\nhost: {HOST}:{port}\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n"
        )
        self.chunks: list[tuple[int, bytes]] = []
        self.bytes = 0
        self.first_at = 0
        self.last_at = 0
        self.keep_chunks = True
        self.started = asyncio.Event()
        self.ended = asyncio.Event()

    @classmethod
    async def open(cls, port: int, path: str, key: str) -> Follower:
        """Open a stream and wait for its first event."""
        loop = asyncio.get_running_loop()
        _, follower = await loop.create_connection(lambda: cls(port, path, key), HOST, port)
        async with asyncio.timeout(60):
            await follower.started.wait()
        return follower

    def start_clock(self) -> None:
        """Discard the chunks so far and measure from here on."""
        self.chunks.clear()
        self.bytes = 0
        self.first_at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request.encode())

    def data_received(self, data: bytes) -> None:
        self.last_at = time.time_ns()
        if not self.first_at:
            self.first_at = self.last_at
        self.bytes += len(data)
        if self.keep_chunks:
            self.chunks.append((self.last_at, data))
        if not self.started.is_set() and b"\n\n" in data:
            self.started.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


def unchunked(data: bytes) -> bytes:
    """Return the content of a chunked body, without the response head."""
    _, _, rest = data.partition(b"\r\n\r\n") if data.startswith(b"HTTP/") else (b"", b"", data)
    found: list[bytes] = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            break
        found.append(rest[:length])
        rest = rest[length + 2 :]
    return b"".join(found)
