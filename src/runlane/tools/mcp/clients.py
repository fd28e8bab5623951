"""Connections to MCP servers by tenant, definition and secrets. They are opened at first use, shared, and reopened.

A call that was certainly not sent is retried once on a new connection. A call that may have been sent is not retried
here: the caller decides whether it may be repeated. The library is imported with the first connection, so a worker
without MCP servers does not load it.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from runlane.definitions.schema.definition import McpServer
from runlane.errors import SecretUnreadable, TooManySecrets
from runlane.llm.models import ToolOffer
from runlane.outbound import Outbound
from runlane.redaction import Redactor
from runlane.settings import Settings
from runlane.tools.caller import McpCaller, ToolFailed
from runlane.tools.mcp.endpoint import McpEndpoint, secrets_of, target_of

if TYPE_CHECKING:
    from mcp.client.client import Client

    from runlane.tools.mcp.connection import McpConnection

T = TypeVar("T")
Values = Callable[[str, Collection[str]], Awaitable[Mapping[str, str]]]

IDLE_SECONDS: Final = 300.0
MAX_CONNECTIONS: Final = 256


class McpClients:
    """The MCP connections of a process. `values` returns a tenant's existing secrets by name."""

    def __init__(
        self, settings: Settings, values: Values, outbound: Outbound, *, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self._programs_allowed = settings.mcp_stdio
        self._values = values
        self._outbound = outbound
        self._idle_seconds = idle_seconds
        self._links: dict[str, McpConnection] = {}
        self._closed = False

    def for_run(self, tenant: str, redactor: Redactor) -> McpCaller:
        """Return the caller for a run of a tenant. Secrets that are sent are added to the run's redactor."""
        return _Caller(self, tenant, redactor)

    async def tools(self, tenant: str, redactor: Redactor, server: McpServer) -> Sequence[ToolOffer]:
        """Return the tools of a server with the names that the server uses. Raise ToolFailed."""

        async def send(client: Client, target: McpEndpoint) -> list[ToolOffer]:
            from runlane.tools.mcp.convert import list_offers

            return await list_offers(client, target)

        return await self._use(tenant, redactor, server, send)

    async def call(
        self, tenant: str, redactor: Redactor, server: McpServer, name: str, arguments: Mapping[str, Any], key: str
    ) -> Any:
        """Call a tool and return its result. `key` is sent as the idempotency key. Raise ToolFailed."""

        async def send(client: Client, target: McpEndpoint) -> Any:
            from runlane.tools.mcp.convert import call_tool

            return await call_tool(client, target, name, dict(arguments), key)

        return await self._use(tenant, redactor, server, send)

    async def close(self) -> None:
        """Close all connections. Safe to call at any time."""
        self._closed = True
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))

    async def _use(
        self, tenant: str, redactor: Redactor, server: McpServer, send: Callable[[Client, McpEndpoint], Awaitable[T]]
    ) -> T:
        if server.server_type == "stdio" and not self._programs_allowed:
            raise ToolFailed(
                "mcp_refused",
                f'The MCP server "{server.name}" is a program, and this process starts no programs of definitions. Set '
                "RUNLANE_MCP_STDIO=true if authors of definitions may run programs here, or serve it over HTTP.",
                begun=False,
            )
        target = target_of(tenant, server, await self._secrets(tenant, redactor, server))
        await _load()
        while True:
            link, is_new = self._link(target)
            try:
                return await link.request(lambda client: send(client, target), server.timeout_seconds)
            except ToolFailed as failure:
                if is_new or failure.begun or failure.code != "mcp_unreachable":
                    raise
                link.retire()

    async def _secrets(self, tenant: str, redactor: Redactor, server: McpServer) -> Mapping[str, str]:
        names = secrets_of(server)
        try:
            # The secrets are loaded even if another run has opened the connection already.
            return await redactor.learning(self._values)(tenant, names) if names else {}
        except (SecretUnreadable, TooManySecrets) as error:
            message = f'The MCP server "{server.name}" cannot be called. {error}'
            raise ToolFailed(error.code, message, begun=False) from None

    def _link(self, target: McpEndpoint) -> tuple[McpConnection, bool]:
        """Return the connection to a target, and whether this call created it."""
        from runlane.tools.mcp.connection import McpConnection

        link = self._links.get(target.key)
        if link is not None and link.open:
            return link, False
        if self._closed:
            raise ToolFailed("mcp_unreachable", "This worker is stopping.", retryable=True, begun=False)
        self._make_room(target)
        made = self._links[target.key] = McpConnection(target, self._outbound, self._idle_seconds)
        made.when_over(lambda: self._forget(target.key, made))
        return made, True

    def _make_room(self, target: McpEndpoint) -> None:
        if len(self._links) < MAX_CONNECTIONS:
            return
        unused = [(link.used_at, key) for key, link in self._links.items() if not link.busy]
        if not unused:
            message = (
                f'The MCP server "{target.name}" has to wait: this worker has {MAX_CONNECTIONS} connections in use.'
            )
            raise ToolFailed("mcp_unreachable", message, retryable=True, begun=False)
        self._links.pop(min(unused)[1]).retire()

    def _forget(self, key: str, link: McpConnection) -> None:
        if self._links.get(key) is link:
            del self._links[key]


class _Caller:
    """The MCP connections for one run."""

    def __init__(self, clients: McpClients, tenant: str, redactor: Redactor) -> None:
        self._clients = clients
        self._tenant = tenant
        self._redactor = redactor

    async def tools(self, server: McpServer, /) -> Sequence[ToolOffer]:
        return await self._clients.tools(self._tenant, self._redactor, server)

    async def call(self, server: McpServer, name: str, arguments: Mapping[str, Any], key: str, /) -> Any:
        return await self._clients.call(self._tenant, self._redactor, server, name, arguments, key)


async def _load() -> None:
    for name in ("runlane.tools.mcp.connection", "runlane.tools.mcp.convert"):
        if name not in sys.modules:
            # The import runs in a thread because it takes long enough to delay heartbeats.
            await asyncio.to_thread(importlib.import_module, name)
