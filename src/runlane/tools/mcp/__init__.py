"""The client of MCP servers: their tools are found and called over connections that many runs share."""

from runlane.tools.mcp.clients import McpClients, Values

__all__ = ["McpClients", "Values"]
