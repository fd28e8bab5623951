"""External services of a worker: model providers, their limits, web services and MCP servers.

One for all runs of a worker. Connections are opened on first use.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Set
from contextlib import AbstractAsyncContextManager

from runlane.llm.providers import Providers
from runlane.outbound import Outbound
from runlane.rate_limits.limiter import ClusterLimiter
from runlane.redaction import Redactor
from runlane.settings import Settings
from runlane.store.sql.database import Database
from runlane.tools.caller import ToolCaller
from runlane.tools.http import HttpTools
from runlane.tools.mcp import McpClients

Values = Callable[[str, Collection[str]], Awaitable[Mapping[str, str]]]


class Integrations:
    """The external services that steps use."""

    def __init__(
        self, settings: Settings, database: Database, values: Values, providers: Providers | None = None
    ) -> None:
        self._providers = providers
        self._outbound = Outbound(settings)
        self._http = HttpTools(self._outbound, values)
        self.limiter: ClusterLimiter = ClusterLimiter(database)
        self.mcp = McpClients(settings, values, self._outbound)

    def callers(self, tenant: str, redactor: Redactor) -> Mapping[str, ToolCaller]:
        """Return the callers of tools by their type, for a run of a tenant."""
        return {"http": self._http.for_run(tenant, redactor)}

    def connection(self, tenant: str) -> AbstractAsyncContextManager[None]:
        """Wait for and hold one of the connections that a tenant may use at once."""
        return self._outbound.connections.enter(tenant)

    async def warm_up(self, prefixes: Set[str], *, mcp: bool) -> None:
        """Import what these providers, and MCP servers if `mcp` is set, need."""
        if self._providers is not None:
            await self._providers.warm_up(prefixes)
        if mcp:
            await asyncio.to_thread(importlib.import_module, "runlane.tools.mcp.connection")

    async def close(self) -> None:
        """Close every connection. Safe to call twice."""
        if self._providers is not None:
            await self._providers.close()
        await self.mcp.close()
        await self.limiter.close()
        await self._outbound.close()
