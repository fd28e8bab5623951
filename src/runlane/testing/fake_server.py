"""The HTTP server of a fake provider, on loopback only, with counts of all calls.

It is a separate small server because tests need events that frameworks hide: connections that break in the middle of an
answer, answers that never arrive, and the moment at which a client disconnects.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

import orjson
from pydantic import ValidationError

from runlane.testing.fake_embeddings import EmbeddingsWire
from runlane.testing.fake_script import Answers, FakeAnswer, FakeControl, FakeFault, Script
from runlane.testing.fake_wire import WIRES, FakeRequest, Wire

HOST: Final = "127.0.0.1"
KEPT: Final = 500
_MINUTE: Final = 60.0
_SHOWN: Final = 300
_MAX_HEAD: Final = 64 * 1024
_GARBAGE: Final = b"data: {this is not JSON\n\n"
_MAX_BODY: Final = 64 * 1024 * 1024
_EMBEDDINGS: Final = EmbeddingsWire()
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(slots=True)
class Call:
    """One call in the log, with a hash of its key and the names of its headers.

    `outcome` is a status or another end.
    """

    number: int
    path: str
    key: str
    model: str
    turn: int
    last: str
    stream: bool
    headers: list[str]
    body: Any = field(repr=False)
    outcome: str = "open"

    def summary(self) -> dict[str, Any]:
        """Return all fields except the body."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "body"}


class Meter:
    """Counts of calls, and of concurrent calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.outcomes: Counter[str] = Counter()
        self.in_flight = 0
        self.most_in_flight = 0
        self.most_per_minute = 0
        self.log: deque[Call] = deque(maxlen=KEPT)
        self._begun: deque[float] = deque()
        self._busy_seconds = 0.0
        self._since = time.monotonic()

    def per_minute(self) -> int:
        """Return the number of calls that began within the last minute and were not rejected."""
        now = time.monotonic()
        while self._begun and self._begun[0] <= now - _MINUTE:
            self._begun.popleft()
        return len(self._begun)

    def begin(self, *, refused: bool = False) -> None:
        """Count the start of a call. A rejected call is not counted as in flight."""
        if refused:
            return
        self._flow(1)
        self._begun.append(time.monotonic())
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.most_per_minute = max(self.most_per_minute, self.per_minute())

    def end(self, outcome: str, *, refused: bool = False) -> None:
        """Count the end of a call."""
        self.outcomes[outcome] += 1
        if not refused:
            self._flow(-1)

    def stats(self) -> dict[str, Any]:
        """Return the counts. `in_flight_seconds` is the total time of all calls."""
        self._flow(0)
        return {
            "pid": os.getpid(),
            "calls": self.calls,
            "outcomes": dict(self.outcomes),
            "in_flight": self.in_flight,
            "most_in_flight": self.most_in_flight,
            "in_flight_seconds": self._busy_seconds,
            "calls_per_minute": self.per_minute(),
            "most_per_minute": self.most_per_minute,
            "log": [call.summary() for call in self.log],
        }

    def _flow(self, change: int) -> None:
        now = time.monotonic()
        self._busy_seconds += self.in_flight * (now - self._since)
        self._since = now
        self.in_flight += change


class _Reader(asyncio.StreamReader):
    """A reader that detects a disconnect without consuming further input."""

    def __init__(self) -> None:
        super().__init__(limit=_MAX_HEAD)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.gone.set()


class FakeServer:
    """A fake provider in this process. `async with FakeServer(["Hello."]) as fake: fake.url`."""

    def __init__(self, answers: Answers, port: int = 0) -> None:
        self._script = Script(answers)
        self._wanted_port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._control = FakeControl()
        self.meter = Meter()

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        if self._server is None:
            raise RuntimeError("The fake provider has no port yet. Call start() first.")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """The base URL for Anthropic clients; for OpenAI clients, append /v1."""
        return f"http://{HOST}:{self.port}"

    async def start(self) -> Self:
        """Start to listen on a free port of loopback."""

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._serve(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        def protocol() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(_Reader(), connected)

        self._server = await asyncio.get_running_loop().create_server(protocol, HOST, self._wanted_port)
        return self

    async def stop(self) -> None:
        """Close all connections. Safe to call at any time."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if server is not None:
            await server.wait_closed()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def control(self, change: FakeControl) -> None:
        """Change limits, faults or answers. Omitted fields keep their value, and None removes a value."""
        if change.answers is not None:
            self._script = Script(change.answers)
        if change.reset:
            open_calls, self.meter = self.meter.in_flight, Meter()
            for _ in range(open_calls):
                self.meter.begin()
        given = change.model_fields_set - {"answers", "reset"}
        self._control = self._control.model_copy(update={name: getattr(change, name) for name in given})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # The client disconnected, or sent no valid HTTP.
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])
        }
        size = int(headers.get("content-length", "0"))
        if size > _MAX_BODY:
            return False
        body = await reader.readexactly(size)
        url = urlsplit(target)
        wire = _EMBEDDINGS if url.path == "/v1/embeddings" else WIRES.get(url.path)
        if method == "POST" and wire is not None:
            return await self._call(wire, url.path, headers, body, reader, writer)
        _send(writer, *self._own(method, url.path, url.query, body))
        await writer.drain()
        return True

    def _own(self, method: str, path: str, query: str, body: bytes) -> tuple[int, Any]:
        """Return the response to a test's request for statistics, or for a change of the behaviour."""
        match method, path:
            case "GET", "/_stats":
                return 200, self.meter.stats()
            case "GET", "/_requests":
                last = int(parse_qs(query).get("last", ["50"])[0])
                return 200, [call.summary() | {"body": call.body} for call in list(self.meter.log)[-last:]]
            case "POST", "/_control":
                try:
                    self.control(FakeControl.model_validate_json(body))
                except ValidationError as error:
                    return 400, {"error": str(error)}
                return 200, self.meter.stats()
            case _:
                return 404, {"error": {"message": f"The fake provider has no {method} {path}."}}

    async def _call(
        self,
        wire: Wire,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        content = orjson.loads(body)
        request = wire.parse_request(content)
        meter = self.meter
        meter.calls += 1
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        call = Call(
            number=meter.calls,
            path=path,
            key=hashlib.sha256(key.encode()).hexdigest()[:12],
            model=request.model,
            turn=request.turn,
            last=request.last[:_SHOWN],
            stream=request.stream,
            headers=sorted(headers),
            body=content,
        )
        meter.log.append(call)
        refusal = self._refusal() or _wrong_tools(content, path)
        meter.begin(refused=refusal is not None)
        answer = FakeAnswer(fault=refusal) if refusal is not None else self._script.chosen(request.turn, request.last)
        if self._control.fault is not None and refusal is None:
            answer = answer.model_copy(update={"fault": self._control.fault})

        def ended(outcome: str) -> None:
            if call.outcome == "open":
                call.outcome = outcome
                self.meter.end(outcome, refused=refusal is not None)

        answering = asyncio.ensure_future(_answer(wire, answer, request, writer, ended))
        leaving = asyncio.ensure_future(_gone(reader))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done() and answering.result():
                await writer.drain()
                return True
            ended("hung up")
            writer.transport.abort()
            return False
        finally:
            leaving.cancel()
            answering.cancel()
            ended("hung up")

    def _refusal(self) -> FakeFault | None:
        limits, meter = self._control, self.meter
        wait = limits.retry_after_seconds
        if limits.max_in_flight is not None and meter.in_flight >= limits.max_in_flight:
            return FakeFault(status=429, message="Too many calls at once.", retry_after_seconds=wait)
        if limits.max_per_minute is not None and meter.per_minute() >= limits.max_per_minute:
            return FakeFault(status=429, message="Too many calls in a minute.", retry_after_seconds=wait)
        return None


def _wrong_tools(body: Mapping[str, Any], path: str) -> FakeFault | None:
    """Return the fault for a request with an invalid tool name; None if all names are valid."""
    tools: list[dict[str, Any]] = body.get("tools") or []
    for tool in tools:
        content: dict[str, Any] = tool.get("function") or tool
        name = str(content.get("name", ""))
        # Anthropic accepts longer names.
        if not _TOOL_NAME.fullmatch(name) or len(name) > (128 if path == "/v1/messages" else 64):
            return FakeFault(status=400, type="invalid_request_error", message=f"Invalid tool name: {name!r}.")
    return None


async def _gone(reader: asyncio.StreamReader) -> None:
    if isinstance(reader, _Reader):
        await reader.gone.wait()


async def _answer(
    wire: Wire, answer: FakeAnswer, request: FakeRequest, writer: asyncio.StreamWriter, ended: Callable[[str], None]
) -> bool:
    """Send the answer or the fault. Return whether the connection can be reused.

    `ended` is called before the client can read the end of the answer.
    """
    await asyncio.sleep(answer.delay_seconds)
    fault = answer.fault
    match fault.kind if fault is not None else None:
        case "hang":
            await asyncio.Event().wait()
        case "garbage":
            ended("garbage")
            kind = b"text/event-stream" if request.stream else b"application/json"
            _head(writer, 200, kind, f"content-length: {len(_GARBAGE)}".encode())
            writer.write(_GARBAGE)
        case "status" if fault is not None:
            ended(str(fault.status))
            wait = fault.retry_after_seconds
            _send(writer, fault.status, wire.error(fault), b"" if wait is None else f"retry-after: {wait:g}".encode())
        case _ if request.stream:
            return await _stream(wire, answer, request, writer, ended)
        case _:
            ended("200")
            _send(writer, 200, wire.whole(answer, request))
    return True


async def _stream(
    wire: Wire, answer: FakeAnswer, request: FakeRequest, writer: asyncio.StreamWriter, ended: Callable[[str], None]
) -> bool:
    _head(writer, 200, b"text/event-stream", b"transfer-encoding: chunked")
    events = list(wire.stream(answer, request))
    fault = answer.fault
    if fault is not None:
        events = events[: len(events) // 2]
        if fault.kind == "late":
            events.append(wire.late_error(fault))
    for number, event in enumerate(events, 1):
        if number == len(events):
            ended("200" if fault is None else fault.kind)
        writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        await writer.drain()
        if answer.piece_delay_seconds:
            await asyncio.sleep(answer.piece_delay_seconds)
    if fault is not None and fault.kind == "break":
        return False
    writer.write(b"0\r\n\r\n")
    return True


def _send(writer: asyncio.StreamWriter, status: int, body: Any, extra: bytes = b"") -> None:
    content = orjson.dumps(body)
    lines = [f"content-length: {len(content)}".encode(), *([extra] if extra else [])]
    _head(writer, status, b"application/json", *lines)
    writer.write(content)


def _head(writer: asyncio.StreamWriter, status: int, kind: bytes, *lines: bytes) -> None:
    head = [f"HTTP/1.1 {status} Fake".encode(), b"content-type: " + kind, *lines]
    writer.write(b"\r\n".join(head) + b"\r\n\r\n")
