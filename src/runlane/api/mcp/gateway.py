"""The MCP server of an API process. It is loaded at the first request and stopped with the process.

It is stateless. Each request carries its key, and a run is found by its id, so any replica can serve any request
without a session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from runlane.api.services import Services
from runlane.domain.access import Principal
from runlane.errors import Unavailable

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

log = structlog.get_logger(__name__)

_STOP_SECONDS = 5.0


class McpGateway:
    """Serves MCP requests of a process. The first request calls start(); stop() is safe to call at any time."""

    def __init__(self, parts: Services, authenticate: Callable[[Request], Awaitable[Principal]]) -> None:
        self._parts = parts
        self._authenticate = authenticate
        self._manager: StreamableHTTPSessionManager | None = None
        self._starting = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if self._manager is None:
            await self._start()
        manager = self._manager
        if manager is None or self._stopping.is_set():
            raise Unavailable("This server is stopping. Retry the call; a run that it started can be found by its id.")
        await manager.handle_request(scope, receive, send)

    async def stop(self) -> None:
        """End the requests in flight."""
        self._stopping.set()
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait([task], timeout=_STOP_SECONDS)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _start(self) -> None:
        async with self._starting:
            if self._manager is not None or self._stopping.is_set():
                return
            # The SDK takes a second to load, so it is loaded in a thread and the event loop continues to serve streams.
            manager = await asyncio.to_thread(self._load)
            started = asyncio.Event()
            # The manager's task group must be entered and left by the same task.
            self._task = asyncio.create_task(self._run(manager, started), name="runlane-mcp")
            await started.wait()
            self._manager = manager

    def _load(self) -> StreamableHTTPSessionManager:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from runlane.api.mcp.server import build_server

        server = build_server(self._parts, self._identify)
        # The API limits request bodies and, on open servers, checks Host and Origin.
        limit = self._parts.app.settings.api_max_body_bytes
        return StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=limit)

    async def _run(self, manager: StreamableHTTPSessionManager, started: asyncio.Event) -> None:
        async with manager.run():
            started.set()
            await self._stopping.wait()

    async def _identify(self, request: Request | None) -> Principal:
        if request is None:
            raise AssertionError("a request over HTTP has its request")
        return await self._authenticate(request)
