"""A receiver of webhooks for tests: a real HTTP server that remembers what it got and answers as it was asked to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

Respond = Callable[["Received"], "Answer"]

# Deliveries of the endpoint `we_a` that have failed, more than a test can send.
FAILED_DELIVERIES = """
insert into webhook_deliveries
    (id, message_id, endpoint_id, tenant, type, status, tries, max_tries, created_at, ended_at)
with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < :count)
select 'whd_' || n, 'msg_' || n, 'we_a', 'default', 'run.completed', 'failed', 1, 1, 1, 1 from numbers
"""


@dataclass(frozen=True)
class Received:
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """How a request is answered: `hang` not at all, `drip` a byte at a time, `flood` without end."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    hang: bool = False
    drip: bool = False
    flood: bool = False


class WebhookReceiver:
    """Listens on a free port of loopback."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers: dict[str, Respond] = {}
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def of(self, path: str = "/hook") -> list[Received]:
        """Return what arrived at a path."""
        return [item for item in self.received if item.path == path]

    def answer(self, respond: Respond | Answer, path: str = "/hook") -> None:
        """Answer the requests of a path like this from now on."""
        self.answers[path] = respond if callable(respond) else lambda _: respond

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while (request := await _read(reader)) is not None:
                self.received.append(request)
                respond = self.answers.get(request.path, lambda _: Answer())
                if not await _write(writer, respond(request)):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Received | None:
    head = await reader.readline()
    if not head:
        return None
    path = head.decode().split()[1]
    headers: dict[str, str] = {}
    while (line := (await reader.readline()).decode().strip()) != "":
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(path, headers, body)


async def _write(writer: asyncio.StreamWriter, answer: Answer) -> bool:
    """Answer; return whether the connection can be used again."""
    if answer.hang:
        await asyncio.Event().wait()
    length = 2**30 if answer.flood or answer.drip else len(answer.body)
    headers = {"content-length": str(length), **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} X", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    writer.write("\r\n".join(lines).encode() + answer.body)
    while answer.flood or answer.drip:
        writer.write(b"x" if answer.drip else b"x" * 65536)
        await writer.drain()
        await asyncio.sleep(0.05 if answer.drip else 0)
    await writer.drain()
    return True
