"""`/mcp`: the MCP server over streamable HTTP, and its metadata for OAuth clients."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from runlane.api.auth import Anyone
from runlane.api.mcp.metadata import MCP_PATH, METADATA_PATH, resource_metadata
from runlane.api.router import RawRouter
from runlane.api.serializers import JsonBody
from runlane.api.services import Services, parts_of
from runlane.errors import Unavailable

router = RawRouter(tags=["mcp"])
# No key is needed, because a client reads the metadata to find out how to get a key.
public = RawRouter(tags=["mcp"])


class _McpResponse(Response):
    """Serves the request itself, because the SDK writes the response."""

    def __init__(self, parts: Services) -> None:
        super().__init__()
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._parts.mcp is None:
            raise Unavailable("This server is stopping. Retry the call.")
        await self._parts.mcp.handle(scope, receive, send)


@router.post(MCP_PATH, response_class=Response, include_in_schema=False)
async def post_mcp(request: Request, principal: Anyone) -> Response:
    """Serve one request of the Model Context Protocol. Any replica can serve any request."""
    return _McpResponse(parts_of(request))


@public.get(METADATA_PATH, include_in_schema=False)
@public.get(f"{METADATA_PATH}{MCP_PATH}", include_in_schema=False)
async def get_metadata(request: Request) -> JsonBody:
    """Return the metadata of the protected resource (RFC 9728)."""
    return JsonBody(resource_metadata(request, parts_of(request).app.settings))
