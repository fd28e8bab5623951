"""The MCP server: runs, definitions and exposed targets as tools and resources, over HTTP and stdio."""
