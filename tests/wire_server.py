"""A server that implements the wire format of streams over real sockets and simulates failures.

It has one run with its events. Each connection gets the next behaviour of the script, and a correct response after its
end, so a test defines exactly how connections break and observes how a client reacts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from runlane.api.sse_encoding import delta_frame, line_frame
from runlane.domain.events import Delta, StoredEvent

RUN = "run_1"


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def after(self) -> int:
        return int(self.headers.get("last-event-id", "0"))


class Connection:
    """Sends the response to one request."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def begin(self, status: int = 200, headers: dict[str, str] | None = None) -> None:
        all_headers = {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"} | (
            headers or {}
        )
        lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
        self._writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode())
        await self._writer.drain()

    async def send(self, data: bytes) -> None:
        if data:
            self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await self._writer.drain()

    async def end(self) -> None:
        """End the response cleanly, like a process that stops or a run that has ended."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def abort(self) -> None:
        """Reset the connection, like a process that was killed."""
        self._writer.transport.abort()

    async def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        all_headers = {"content-type": "application/json", "content-length": str(len(content))} | (headers or {})
        lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
        self._writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + content)
        await self._writer.drain()


Behaviour = Callable[[Connection, Request], Awaitable[None]]


def stored_event(seq: int, kind: str = "log", attempt: int = 1, data: str | None = None) -> StoredEvent:
    return StoredEvent(
        seq, kind, attempt, 1_700_000_000_000_000 + seq, json.dumps({"message": f"n{seq}"}) if data is None else data
    )


def finished_run(count: int) -> list[StoredEvent]:
    """Return this number of events, the last of which is `done`."""
    return [*(stored_event(seq) for seq in range(1, count)), stored_event(count, "done", data='{"status":"completed"}')]


@dataclass
class WireServer:
    lines: list[StoredEvent] = field(default_factory=list[StoredEvent])
    script: list[Behaviour] = field(default_factory=list[Behaviour])
    requests: list[Request] = field(default_factory=list[Request])
    port: int = 0
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def frames(self, after: int) -> list[bytes]:
        return [line_frame(RUN, line) for line in self.lines if line.seq > after]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await self._server.wait_closed()

    async def serve_events(self, connection: Connection, request: Request) -> None:
        await connection.begin()
        frames = self.frames(request.after)
        await connection.send(b"".join(frames) or b'data: {"type":"stream_complete"}\n\n')
        await connection.end()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            request = await _read(reader)
            self.requests.append(request)
            behaviour = self.script.pop(0) if self.script else self.serve_events
            await behaviour(Connection(writer), request)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *rest = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    return Request(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def refusing(status: int, code: str, headers: dict[str, str] | None = None) -> Behaviour:
    async def behave(connection: Connection, request: Request) -> None:
        await connection.answer(status, {"detail": "no", "code": code, "message": "no"}, headers)

    return behave


def sending(*pieces: bytes, cleanly: bool = True) -> Behaviour:
    async def behave(connection: Connection, request: Request) -> None:
        await connection.begin()
        for piece in pieces:
            await connection.send(piece)
        if cleanly:
            await connection.end()
        else:
            connection.abort()

    return behave


def answering(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Behaviour:
    async def behave(connection: Connection, request: Request) -> None:
        await connection.answer(status, body, headers)

    return behave


async def reset_connection(connection: Connection, request: Request) -> None:
    connection.abort()


def delta(attempt: int, text: str) -> bytes:
    return delta_frame(Delta(RUN, attempt, "progress", json.dumps({"note": text})))


@asynccontextmanager
async def wire_server(lines: Sequence[StoredEvent] = (), *script: Behaviour) -> AsyncGenerator[WireServer]:
    server = WireServer(list(lines), list(script))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
