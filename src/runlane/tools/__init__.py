"""Tools of agents outside this process: HTTP services and MCP servers."""
