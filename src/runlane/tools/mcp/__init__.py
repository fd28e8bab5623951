"""MCP client: lists and calls the tools of MCP servers over connections that many runs share."""

from runlane.tools.mcp.clients import McpClients, Values

__all__ = ["McpClients", "Values"]
