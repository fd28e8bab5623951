"""Check an MCP server: connect to it in the same way as agents, and list its tools."""

from __future__ import annotations

from runlane.definitions.schema.definition import McpServer
from runlane.domain.mcp_check import McpCheck, McpToolSummary
from runlane.outbound import Outbound
from runlane.redaction import Redactor
from runlane.settings import Settings
from runlane.tools.caller import ToolFailed
from runlane.tools.mcp.clients import McpClients, Values


async def check_server(settings: Settings, values: Values, tenant: str, server: McpServer) -> McpCheck:
    """Return the tools of a server, or why it cannot be used.

    A connection is opened for the check and closed afterwards.
    """
    outbound, redactor = Outbound(settings), Redactor()
    clients = McpClients(settings, values, outbound)
    try:
        offers = await clients.tools(tenant, redactor, server)
    except ToolFailed as failure:
        return McpCheck(server.name, False, (), failure.code, redactor.clean_value(failure.message))
    finally:
        await clients.close()
        await outbound.close()
    tools = tuple(
        McpToolSummary(
            f"{server.name}__{offer.name}",
            redactor.clean_value(offer.description),
            server.effects.get(offer.name, server.effect),
            redactor.clean_value(dict(offer.input_schema)),
        )
        for offer in offers
    )
    return McpCheck(server.name, True, tools, None, None)
