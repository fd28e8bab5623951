"""MCP client: list and call the tools of MCP servers over connections that many runs share."""

from runlane.tools.mcp.clients import McpClients, Values

__all__ = ["McpClients", "Values"]
