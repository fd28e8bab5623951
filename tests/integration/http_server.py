"""A real HTTP server on loopback that sends exactly the bytes of a test and keeps the requests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Request:
    """A request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Writer = asyncio.StreamWriter
Answering = Callable[[Request, Writer], Awaitable[None]]


@dataclass
class Server:
    port: int
    requests: list[Request] = field(default_factory=list[Request])
    connections: int = 0

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


def plain(
    body: bytes = b"ok", status: str = "200 OK", headers: dict[str, str] | None = None, *, sized: bool = True
) -> Answering:
    """Return a handler that always sends this answer."""

    async def answer(_request: Request, writer: Writer) -> None:
        given = {"content-type": "text/plain", **(headers or {})}
        if sized:
            given["content-length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        writer.write(f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body)
        await writer.drain()

    return answer


def redirect(location: str, status: str = "302 Found") -> Answering:
    return plain(b"", status, {"location": location})


@asynccontextmanager
async def serving(
    answer: Answering, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Server]:
    """Serve until the block ends."""
    server = Server(0)
    writers: set[Writer] = set()

    async def handle(reader: asyncio.StreamReader, writer: Writer) -> None:
        server.connections += 1
        writers.add(writer)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                    first, *lines = head.strip().split("\r\n")
                    method, target, _ = first.split(" ")
                    pairs = (line.partition(":") for line in lines)
                    headers = {name.lower(): value.strip() for name, _, value in pairs}
                    body = await reader.readexactly(int(headers.get("content-length", "0")))
                    request = Request(method, target, headers, body)
                    server.requests.append(request)
                    await answer(request, writer)
                    if "content-length" not in headers and method in ("POST", "PUT"):
                        break
        finally:
            # Not every version of asyncio ends the connection of a handler that raised.
            writer.close()

    listener = await asyncio.start_server(handle, host, 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for writer in writers:
            writer.close()
        for writer in writers:
            with suppress(ConnectionError, ssl.SSLError, OSError):
                await writer.wait_closed()
