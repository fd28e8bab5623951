"""Tools of agents outside of this process: HTTP services and MCP servers."""
