"""The MCP server, built with the SDK. It lists the tools and resources that the caller may use, and serves calls.

For a caller, a tool or resource that it may not use does not exist. Errors of Runlane become results that a model can
read. An error without a public message is logged and not disclosed to a client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import mcp_types as types
import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from starlette.requests import Request

from runlane.api.mcp.catalog import all_tools, find_tool
from runlane.api.mcp.prompts import NEEDS as PROMPTS_NEED
from runlane.api.mcp.prompts import PROMPTS, ServedPrompt
from runlane.api.mcp.resources import RESOURCES, ServedResource, find_resource
from runlane.api.mcp.tool import CallContext, ServedTool, ToolAnswer
from runlane.api.services import Services
from runlane.domain.access import Principal
from runlane.errors import RunlaneError, Unavailable
from runlane.version import VERSION

log = structlog.get_logger(__name__)

# `_meta` of a call may contain this key, for clients that retry calls themselves.
IDEMPOTENCY_META: Final = "runlane/idempotencyKey"
_INTERNAL: Final = "Internal error. The server's log has the cause."
_INSTRUCTIONS: Final = (
    "Runlane executes durable runs of tasks, agents and orchestrations. A started run continues without this "
    "connection: keep its run_id and call follow_run for its result. Pass an idempotency_key to calls that you may "
    "repeat. list_definitions shows what can be started, list_questions what waits for a person."
)

# Returns the principal of a request; the request is None on stdio.
Identify = Callable[[Request | None], Awaitable[Principal]]
_Context = ServerRequestContext[Any, Any]


def build_server(parts: Services, identify: Identify) -> Server[Any]:
    """Return the server of an app for the SDK's transports."""
    handlers = _Handlers(parts, identify)
    return Server(
        "runlane",
        version=VERSION,
        title="Runlane",
        description="Durable runs of tasks, agents and orchestrations.",
        instructions=_INSTRUCTIONS,
        # Tools do not declare headers, so no schema is looked up before a call.
        get_tool_input_schema=lambda _name: None,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
        on_list_prompts=handlers.list_prompts,
        on_get_prompt=handlers.get_prompt,
    )


class _Handlers:
    def __init__(self, parts: Services, identify: Identify) -> None:
        self._parts = parts
        self._identify = identify

    async def list_tools(self, context: _Context, _params: Any) -> types.ListToolsResult:
        caller = await self._caller(context)
        with _Reported():
            return types.ListToolsResult(tools=[_tool(tool) for tool in await all_tools(caller)])

    async def call_tool(self, context: _Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        caller = await self._caller(context)
        try:
            tool = await find_tool(caller, params.name)
            if tool is None:
                raise MCPError(types.INVALID_PARAMS, f'Unknown tool "{params.name[:200]}". List them with tools/list.')
            return _result(await tool.perform(caller, params.arguments or {}))
        except RunlaneError as error:
            return _result(_failure(error))

    async def list_resources(self, context: _Context, _params: Any) -> types.ListResourcesResult:
        caller = await self._caller(context)
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=item.uri, name=item.name, description=item.description, mime_type=item.mime_type)
                for item in _visible(caller)
                if not item.is_template
            ]
        )

    async def list_templates(self, context: _Context, _params: Any) -> types.ListResourceTemplatesResult:
        caller = await self._caller(context)
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    uri_template=item.uri, name=item.name, description=item.description, mime_type=item.mime_type
                )
                for item in _visible(caller)
                if item.is_template
            ]
        )

    async def read_resource(
        self, context: _Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        caller = await self._caller(context)
        uri = str(params.uri)
        with _Reported():
            resource, values = find_resource(caller, uri, RESOURCES)
            found = await resource.read(caller, values)
        contents = [types.TextResourceContents(uri=uri, mime_type=part.mime_type, text=part.text) for part in found]
        return types.ReadResourceResult(contents=list(contents))

    async def list_prompts(self, context: _Context, _params: Any) -> types.ListPromptsResult:
        caller = await self._caller(context)
        shown = PROMPTS if caller.may(PROMPTS_NEED) else ()
        return types.ListPromptsResult(prompts=[_prompt(prompt) for prompt in shown])

    async def get_prompt(self, context: _Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        caller = await self._caller(context)
        found = next((prompt for prompt in PROMPTS if prompt.name == params.name), None)
        if found is None or not caller.may(PROMPTS_NEED):
            raise MCPError(types.INVALID_PARAMS, f'Unknown prompt "{params.name[:200]}". List them with prompts/list.')
        text = types.TextContent(text=found.text(params.arguments or {}))
        message = types.PromptMessage(role="user", content=text)
        return types.GetPromptResult(description=found.description, messages=[message])

    async def _caller(self, context: _Context) -> CallContext:
        with _Reported():
            principal = await self._identify(context.request)

        async def report(progress: float, message: str) -> None:
            await context.session.report_progress(progress, None, message)

        return CallContext(self._parts, principal, report, _idempotency_key(context.meta))


class _Reported:
    """Convert errors of Runlane into errors of the protocol."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, RunlaneError):
            failure = _failure(error)
            raise MCPError(types.INVALID_PARAMS, failure.shown, dict(failure.value)) from None


def _visible(caller: CallContext) -> list[ServedResource]:
    return [resource for resource in RESOURCES if caller.may(resource.needs)]


def _tool(tool: ServedTool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=dict(tool.input_schema),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.read_only,
            destructive_hint=tool.destructive,
            idempotent_hint=tool.idempotent,
            open_world_hint=not tool.read_only,
        ),
    )


def _prompt(prompt: ServedPrompt) -> types.Prompt:
    arguments = [
        types.PromptArgument(name="memory_id", description="The memory.", required=False),
        types.PromptArgument(name="memory_type", description="Its type.", required=False),
    ]
    return types.Prompt(name=prompt.name, title=prompt.title, description=prompt.description, arguments=arguments)


def _result(answer: ToolAnswer) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(text=answer.shown)],
        structured_content=dict(answer.value),
        is_error=answer.failed,
    )


def _failure(error: RunlaneError) -> ToolAnswer:
    message = error.public_message
    if error.http_status == 500:
        log.error("mcp_call_failed", error=str(error), exc_info=error)
        message = _INTERNAL
    value: dict[str, Any] = {"code": error.code, "message": message}
    retry_after: float | None = getattr(error, "retry_after_seconds", None)
    if retry_after is not None or isinstance(error, Unavailable):
        value["retry_after_seconds"] = 2.0 if retry_after is None else retry_after
    return ToolAnswer(value, failed=True, text=message)


def _idempotency_key(meta: Mapping[str, Any] | None) -> str | None:
    key = None if meta is None else meta.get(IDEMPOTENCY_META)
    return key if isinstance(key, str) and key else None
