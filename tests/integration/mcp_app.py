"""An app whose worker calls MCP servers of this machine, for processes that a test kills."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import httpx2

from runlane import App
from runlane.agents.mcp import McpClients
from runlane.settings import load_settings
from runlane.testing import crash_points
from runlane.worker import program

crash_points.install_from_environment()


async def no_secrets(tenant: str, names: Collection[str]) -> Mapping[str, str]:
    return {}


settings = load_settings(mcp_stdio=True)
app = App(settings)
program.Orchestrations = partial(
    program.Orchestrations, mcp=McpClients(settings, no_secrets, httpx2.AsyncHTTPTransport)
)
