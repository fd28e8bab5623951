"""The worker's health endpoint, served by the liveness thread: it responds even while user code blocks the worker.

/health is liveness: the process and its liveness thread run. /ready is readiness: the lease is valid (so the database
responded recently), the event loop and the claim loop are not blocked, and the worker is not draining. Both return the
same fields. /metrics returns the metrics of this process, for Prometheus.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

import structlog

from runlane.domain.text import dump_json
from runlane.errors import ConfigurationError
from runlane.observability import metrics
from runlane.settings import Settings
from runlane.version import VERSION

log = structlog.get_logger(__name__)

DEFAULT_PORT = 9000
# A claim loop without an iteration for this long is stuck, or its event loop is blocked by user code.
CLAIM_LOOP_SECONDS = 15.0
_REQUEST_SECONDS = 5.0
_MAX_REQUEST_BYTES = 8192
# Probes are few. Beyond this the oldest connection is closed, so that idle ones cannot block a probe.
MAX_CONNECTIONS = 64
_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not listened on


def _never() -> bool:
    return False


@dataclass(slots=True)
class WorkerHealth:
    """Written by the worker and read by the health server. Each change is one assignment, so no lock is needed."""

    capacity: int
    started_at: float = field(default_factory=time.monotonic)
    worker_id: str | None = None
    draining: bool = False
    claim_loop_turned_at: float = field(default_factory=time.monotonic)
    loop_turned_at: float = field(default_factory=time.monotonic)
    # The lease was abandoned because the event loop is stuck.
    stalled: bool = False
    count_active: Callable[[], int] = lambda: 0
    may_work: Callable[[], bool] = _never

    def begin(self, may_work: Callable[[], bool], worker_id: str) -> None:
        """Note a new registration of the worker."""
        self.worker_id = worker_id
        self.may_work = may_work

    def active(self) -> int:
        """Return the number of runs in execution."""
        return self.count_active()

    def problems(self) -> list[str]:
        """Return why the worker is not ready; empty when it is."""
        problems: list[str] = []
        if self.stalled:
            problems.append("the lease was abandoned: the event loop is blocked")
        elif not self.may_work():
            problems.append("the lease is not renewed: the database does not respond")
        if self.draining:
            problems.append("draining")
        if time.monotonic() - self.claim_loop_turned_at > CLAIM_LOOP_SECONDS:
            problems.append("the claim loop is blocked: user code may block the event loop")
        return problems

    def body(self) -> dict[str, object]:
        """Return the body of /health and /ready."""
        problems = self.problems()
        return {
            "status": "draining" if self.draining else "ready" if not problems else "not_ready",
            "problems": problems,
            "worker_id": self.worker_id,
            "active_runs": self.active(),
            "capacity": self.capacity,
            "uptime_seconds": round(time.monotonic() - self.started_at, 1),
            "version": VERSION,
        }


class HealthServer:
    """A minimal HTTP server: three paths, no request bodies, one request per connection."""

    def __init__(self, settings: Settings, health: WorkerHealth) -> None:
        self._settings = settings
        self._health = health
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}
        self.port: int | None = None

    async def start(self) -> None:
        """Listen on the configured port; without one on 9000, or on a free port if 9000 is taken."""
        wanted = self._settings.worker_health_port
        if wanted == 0:
            return
        host = self._settings.worker_health_host
        try:
            self._server = await asyncio.start_server(
                self._serve, host, wanted or DEFAULT_PORT, limit=_MAX_REQUEST_BYTES
            )
        except OSError as error:
            if wanted is not None:
                raise ConfigurationError(
                    f"The health endpoint cannot listen on {host}:{wanted}: {error.strerror or error}. "
                    "Set RUNLANE_WORKER_HEALTH_PORT to a free port, or to 0 for none."
                ) from None
            self._server = await asyncio.start_server(self._serve, host, 0, limit=_MAX_REQUEST_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("health_endpoint", url=f"http://{host}:{self.port}/health")

    @property
    def address(self) -> str | None:
        """Where it can be reached, as host:port; None without a port."""
        if self.port is None:
            return None
        host = self._settings.worker_health_host
        # A server that listens on every address is reached by the name of its machine.
        host = socket.gethostname() if host in _EVERY_ADDRESS else host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    async def stop(self) -> None:
        """Stop listening. Safe to call twice."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                head = await _read_head(reader)
                writer.write(_too_large() if head is None else self._answer(head))
                await writer.drain()
                writer.close()
                # Waits until everything is sent; a client that reads nothing would delay this forever.
                await writer.wait_closed()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass  # a probe that disconnected or sent something else
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    def _answer(self, request_line: bytes) -> bytes:
        method, _, rest = request_line.decode("latin-1").partition(" ")
        path = rest.split(" ", 1)[0].split("?", 1)[0]
        if method not in ("GET", "HEAD"):
            return _response(405, {"detail": "Use GET."})
        answer = self._answer_to(path)
        # A response to HEAD has the head of the response to GET and no body.
        return answer if method == "GET" else answer[: answer.index(b"\r\n\r\n") + 4]

    def _answer_to(self, path: str) -> bytes:
        body = self._health.body()
        match path:
            case "/health" | "/healthz" | "/live":
                return _response(200, body)
            case "/ready" | "/readyz":
                return _response(503 if body["problems"] else 200, body)
            case "/metrics":
                return _text(200, metrics.render().encode(), "text/plain; version=0.0.4; charset=utf-8")
            case _:
                return _response(404, {"detail": "Paths: /health, /ready and /metrics."})


async def _read_head(reader: asyncio.StreamReader) -> bytes | None:
    """Read a request's head and return its first line; None if the head is too large."""
    first, read = b"", 0
    while True:
        try:
            line = await reader.readuntil(b"\r\n")
        except asyncio.LimitOverrunError:
            return None
        read += len(line)
        if read > _MAX_REQUEST_BYTES:
            return None
        if first and line == b"\r\n":
            return first
        first = first or line


def _too_large() -> bytes:
    return _response(431, {"detail": f"The request has more than {_MAX_REQUEST_BYTES} bytes. Send fewer headers."})


def _response(status: int, body: dict[str, object]) -> bytes:
    return _text(status, dump_json(body).encode(), "application/json")


def _text(status: int, content: bytes, kind: str) -> bytes:
    reason = HTTPStatus(status).phrase
    head = (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + content
