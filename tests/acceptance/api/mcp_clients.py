"""The MCP SDK's own client against a served API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

MODERN = "auto"
HANDSHAKE = "legacy"


@asynccontextmanager
async def mcp_client(url: str, key: str | None, *, mode: str = MODERN) -> AsyncGenerator[Client]:
    """Return the SDK's client of a server, with a key."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


class Notes:
    """The progress notifications of a call."""

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.messages: list[str] = []

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.numbers.append(progress)
        self.messages.append(message or "")

    @property
    def run_id(self) -> str | None:
        """The run that the first notification names."""
        return self.messages[0].split()[1] if self.messages else None


def value_of(result: CallToolResult) -> dict[str, Any]:
    """Return the structured result of a call."""
    assert result.structured_content is not None, result
    return result.structured_content


async def tool_names(client: Client) -> set[str]:
    """Return the names of all tools that the client sees."""
    return {tool.name for tool in (await client.list_tools()).tools}
