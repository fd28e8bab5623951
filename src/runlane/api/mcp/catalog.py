"""The tools of a caller: the tools of Runlane, and the exposed targets of the caller's tenant."""

from __future__ import annotations

from typing import Final

from runlane.api.mcp.exposed import exposed_tools
from runlane.api.mcp.memory_tools import MEMORY_TOOLS
from runlane.api.mcp.reading_tools import READING_TOOLS
from runlane.api.mcp.run_tools import RUN_TOOLS
from runlane.api.mcp.tool import CallContext, ServedTool

TOOLS: Final[dict[str, ServedTool]] = {tool.name: tool for tool in (*RUN_TOOLS, *READING_TOOLS, *MEMORY_TOOLS)}


async def all_tools(caller: CallContext) -> list[ServedTool]:
    """Return the tools that the caller may call."""
    own = [tool for tool in TOOLS.values() if caller.may(tool.needs)]
    return [*own, *await exposed_tools(caller, TOOLS)]


async def find_tool(caller: CallContext, name: str) -> ServedTool | None:
    """Return a tool by its name; None if it does not exist or the caller may not call it."""
    known = TOOLS.get(name)
    if known is not None:
        return known if caller.may(known.needs) else None
    return next((tool for tool in await exposed_tools(caller, TOOLS) if tool.name == name), None)
