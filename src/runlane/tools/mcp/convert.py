"""Conversion from MCP types: the tools that servers offer and the results of calls, both limited in size."""

from __future__ import annotations

import re
from typing import Any, Final

import mcp_types as types
import structlog
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

from runlane.domain.text import dump_json
from runlane.event_loop.offload import LARGE_BYTES, offload_if
from runlane.llm.models import ToolOffer
from runlane.tools.caller import ToolFailed
from runlane.tools.mcp.endpoint import McpEndpoint

log = structlog.get_logger(__name__)

MAX_TOOLS: Final = 256
MAX_PAGES: Final = 64
MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_LISTING_BYTES: Final = 1024 * 1024
_MAX_DESCRIPTION: Final = 4000
_MAX_MESSAGE: Final = 4000
# The protocol allows these names of tools.
_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_SHOWN: Final = 64
_RESULT: Final[TypeAdapter[types.CallToolResult | types.InputRequiredResult]] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


async def list_offers(client: Client, target: McpEndpoint) -> list[ToolOffer]:
    """Return the allowed tools of a server, read page by page. Raise ToolFailed if there are too many."""
    offers: dict[str, ToolOffer] = {}
    size = 0
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            if not _wanted(tool.name, target):
                continue
            offer = _offer(tool, target)
            offers.setdefault(offer.name, offer)
            size += len(dump_json(offer.input_schema)) + len(offer.description)
            if len(offers) > MAX_TOOLS or size > MAX_LISTING_BYTES:
                raise _too_many(target)
        if not page.next_cursor or page.next_cursor == cursor:
            return list(offers.values())
        cursor = page.next_cursor
    raise _too_many(target)


async def call_tool(client: Client, target: McpEndpoint, name: str, arguments: dict[str, Any], key: str) -> Any:
    """Call a tool and return its result. Raise ToolFailed and errors of the library.

    The client's own method is not used. It validates the result against a schema of the server with a library in which
    some patterns never finish, and it lists all tools for this purpose after the call had its effect.
    """
    request = types.CallToolRequest(
        params=types.CallToolRequestParams(name=name, arguments=arguments, _meta={"idempotencyKey": key})
    )
    try:
        result = await client.session.send_request(request, _RESULT)
    except MCPError as error:
        if error.code != types.HEADER_MISMATCH:
            raise
        # The server rejects the call unread: some arguments must also be sent as headers, as the list of tools
        # declares.
        await list_offers(client, target)
        result = await client.session.send_request(request, _RESULT)
    if isinstance(result, types.InputRequiredResult):
        raise ToolFailed("mcp_protocol", f'The tool {name} of the MCP server "{target.name}" requests input.')
    size = sum(len(block.text) for block in result.content if isinstance(block, types.TextContent))
    return await offload_if(size > LARGE_BYTES, _value, result, target, name)


def _wanted(name: str, target: McpEndpoint) -> bool:
    server = target.server
    if server.allowed_tools is not None and name not in server.allowed_tools:
        return False
    if _NAME.fullmatch(name):
        return True
    log.warning(
        "mcp_tool_left_out",
        server=server.name,
        tool=target.redact(name, _SHOWN),
        reason="names of tools have 1 to 128 of A-Z, a-z, 0-9, '_', '-', '.' and '/'",
    )
    return False


def _offer(tool: types.Tool, target: McpEndpoint) -> ToolOffer:
    schema = target.redact_value(tool.input_schema)
    if len(dump_json(schema)) > MAX_SCHEMA_BYTES:
        raise ToolFailed(
            "mcp_too_large",
            f'The input schema of the tool {tool.name} of the MCP server "{target.name}" has more than '
            f"{MAX_SCHEMA_BYTES} bytes. Exclude it: name the tools to use in allowed_tools.",
            begun=False,
        )
    return ToolOffer(tool.name, target.redact(tool.description or tool.title or "", _MAX_DESCRIPTION), schema)


def _too_many(target: McpEndpoint) -> ToolFailed:
    return ToolFailed(
        "mcp_too_large",
        f'The MCP server "{target.name}" offers more than {MAX_TOOLS} tools, or {MAX_LISTING_BYTES} bytes of them. '
        "Name those to use in allowed_tools.",
        begun=False,
    )


def _value(result: types.CallToolResult, target: McpEndpoint, name: str) -> Any:
    pieces = [_piece(block) for block in result.content]
    if result.is_error:
        text = "\n".join(piece if isinstance(piece, str) else dump_json(piece) for piece in pieces).strip()
        raise ToolFailed(
            "tool_failed", target.redact(text, _MAX_MESSAGE) or f"The tool {name} failed without a message."
        )
    value: Any = result.structured_content
    if value is None:
        value = _together(pieces)
    try:
        value = target.redact_value(value)
    except ValueError:
        message = f'The result of the tool {name} of the MCP server "{target.name}" is nested too deeply.'
        raise ToolFailed("mcp_protocol", message) from None
    most = target.server.max_output_bytes
    if len(dump_json(value).encode()) > most:
        message = f'The result of the tool {name} of the MCP server "{target.name}" has more than {most} bytes.'
        raise ToolFailed("mcp_too_large", f"{message} Request less data, or raise max_output_bytes.")
    return value


def _together(pieces: list[Any]) -> Any:
    """Return text as one string, anything else as a list."""
    if all(isinstance(piece, str) for piece in pieces):
        return "\n".join(pieces) if pieces else None
    if len(pieces) == 1:
        return pieces[0]
    return [{"type": "text", "text": piece} if isinstance(piece, str) else piece for piece in pieces]


def _piece(block: types.ContentBlock) -> Any:
    """Return text, or a description of content that is not text."""
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return {"type": block.type, "mime_type": block.mime_type, "size": _decoded(block.data)}
        case types.ResourceLink():
            return {"type": "resource_link", "mime_type": block.mime_type, "uri": str(block.uri), "name": block.name}
        case types.EmbeddedResource():
            resource = block.resource
            if isinstance(resource, types.TextResourceContents):
                return resource.text
            size = _decoded(resource.blob)
            return {"type": "resource", "mime_type": resource.mime_type, "size": size, "uri": str(resource.uri)}


def _decoded(text: str) -> int:
    """Return the size of Base64 after decoding."""
    return len(text) * 3 // 4 - text[-2:].count("=")
