"""The MCP server on stdin and stdout: for the database of this machine, or as a relay to a server.

A relay forwards every request with the key of its user, so that the server's permissions, tools and runs apply.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import httpx2
import mcp_types as types
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from starlette.requests import Request

from runlane.access.policy import LOCAL
from runlane.api.auth import RequestAccess
from runlane.api.mcp.metadata import MCP_PATH
from runlane.api.mcp.server import IDEMPOTENCY_META, build_server
from runlane.api.services import WorkerOptions, start_parts, stop_parts
from runlane.app import App
from runlane.domain.access import BUILT_IN_ROLES, Principal
from runlane.errors import ConfigurationError
from runlane.version import VERSION

_CONNECT_SECONDS = 30.0
# The principal of a server for the database can only read: it cannot start, change or cancel runs.
READER = Principal("local", "local", LOCAL.tenant, "viewer", BUILT_IN_ROLES["viewer"])
_Context = ServerRequestContext[Any, Any]


async def serve_database(
    app: App, principal: Principal, worker: WorkerOptions | None, on_start: Callable[[asyncio.Event], None]
) -> bool:
    """Serve an app's database until stdin ends or the event is set. Return whether stdin is still being read."""
    parts = await start_parts(app, RequestAccess.OPEN_ON_LOOPBACK, worker)

    async def identify(_request: Request | None) -> Principal:
        return principal

    try:
        return await _serve(build_server(parts, identify), on_start)
    finally:
        await stop_parts(parts)


async def relay_to(url: str, api_key: str | None, on_start: Callable[[asyncio.Event], None]) -> bool:
    """Forward requests to the server at this URL. Return as `serve_database` does."""
    async with _connected(url, api_key) as remote:
        return await _serve(_relay(remote), on_start)


async def _serve(server: Server[Any], on_start: Callable[[asyncio.Event], None]) -> bool:
    stopping = asyncio.Event()
    on_start(stopping)

    async def serve() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    serving = asyncio.create_task(serve())
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if serving.done():
        await serving
    # A thread still reads stdin. The process must end without waiting for it.
    return not serving.done()


@contextlib.asynccontextmanager
async def _connected(url: str, api_key: str | None) -> AsyncGenerator[Client]:
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    timeout = httpx2.Timeout(_CONNECT_SECONDS, read=None)
    async with httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=False) as http:
        transport = streamable_http_client(f"{url.rstrip('/')}{MCP_PATH}", http_client=http)
        # Responses are not cached, because the status of a run changes.
        client = Client(transport, cache=None, client_info=types.Implementation(name="runlane", version=VERSION))
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(client)
            except (MCPError, httpx2.HTTPError, OSError, ExceptionGroup) as error:
                raise ConfigurationError(
                    f"The MCP server at {url} cannot be used: {_cause(error)}. Check RUNLANE_URL and RUNLANE_API_KEY."
                ) from None
            yield client


def _cause(error: BaseException) -> str:
    """Return the first cause that is not a group of errors."""
    if isinstance(error, BaseExceptionGroup):
        return _cause(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return str(error) or type(error).__name__


def _relay(remote: Client) -> Server[Any]:
    async def list_tools(_context: _Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return await remote.list_tools(cursor=_cursor(params))

    async def call_tool(context: _Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            await context.session.report_progress(progress, total, message)

        key = (context.meta or {}).get(IDEMPOTENCY_META)
        meta: Any = None if key is None else {IDEMPOTENCY_META: key}
        return await remote.call_tool(params.name, params.arguments, progress_callback=report, meta=meta)

    async def list_resources(
        _context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return await remote.list_resources(cursor=_cursor(params))

    async def list_templates(
        _context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return await remote.list_resource_templates(cursor=_cursor(params))

    async def read_resource(_context: _Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        return await remote.read_resource(str(params.uri))

    async def list_prompts(_context: _Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        return await remote.list_prompts(cursor=_cursor(params))

    async def get_prompt(_context: _Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        return await remote.get_prompt(params.name, params.arguments)

    return Server(
        "runlane",
        version=VERSION,
        title="Runlane",
        instructions=remote.instructions,
        get_tool_input_schema=lambda _name: None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


def _cursor(params: types.PaginatedRequestParams | None) -> str | None:
    return None if params is None else params.cursor
