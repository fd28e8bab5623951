"""HTTP by hand, as little of it as the measurements need: a client's own work must not be what is measured."""

from __future__ import annotations

import asyncio
import time
from typing import Self

HOST = "127.0.0.1"


class Caller:
    """One keep-alive connection; one request at a time."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._head = f"host: {HOST}:{port}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(HOST, self._port, limit=2**24)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._writer.close()

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """The status and the body of the answer."""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}content-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
        return int(answer[9:12]), await self._reader.readexactly(length)

    async def post(self, path: str, body: bytes) -> bytes:
        """The answer to what must be accepted."""
        status, answer = await self.ask("POST", path, body)
        if status != 202:
            raise RuntimeError(f"POST {path} was answered {status}: {answer[:500]!r}")
        return answer


class Follower(asyncio.Protocol):
    """One reader of a stream until the server ends it. What came, and when, piece by piece."""

    def __init__(self, port: int, path: str, key: str) -> None:
        self._request = (
            f"GET {path} HTTP/1.1\r\nhost: {HOST}:{port}\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n"
        )
        self.pieces: list[tuple[int, bytes]] = []
        self.bytes = 0
        self.first_at = 0
        self.last_at = 0
        self.keep = True
        self.began = asyncio.Event()
        self.ended = asyncio.Event()

    @classmethod
    async def open(cls, port: int, path: str, key: str) -> Follower:
        """A reader that has got its first events."""
        loop = asyncio.get_running_loop()
        _, follower = await loop.create_connection(lambda: cls(port, path, key), HOST, port)
        async with asyncio.timeout(60):
            await follower.began.wait()
        return follower

    def start_clock(self) -> None:
        """From here on pieces are timed; what came before is forgotten."""
        self.pieces.clear()
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
        if self.keep:
            self.pieces.append((self.last_at, data))
        if not self.began.is_set() and b"\n\n" in data:
            self.began.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


def unchunked(data: bytes) -> bytes:
    """The content of a chunked body; its head, if there is one, is left out."""
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
