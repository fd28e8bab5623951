"""The process of the fake MCP server: its tools, its journal, and its transports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any, cast

import mcp_types as types
import orjson
import uvicorn
from mcp.server.lowlevel.server import Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.types import Receive, Scope, Send

from runlane.testing.fake_mcp import CONTROL, JOURNAL, READY
from runlane.testing.local import HOST

_PAGE = 3
_LOOK_SECONDS = 0.5
_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_PIXEL = "iVBORw0KGgo="
_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "echo": ("Returns the text.", {"text": _TEXT}),
    "add": ("The sum of two numbers.", {"a": _NUMBER, "b": _NUMBER}),
    "slow": ("Answers after a while.", {"seconds": _NUMBER}),
    "fail": ("Fails with a message.", {"message": _TEXT}),
    "huge": ("Returns a string of this size.", {"size": _NUMBER}),
    "picture": ("A picture.", {}),
    "headers": ("The headers of the request.", {}),
    "environment": ("The environment of the server.", {}),
    "once": ("Counts how often it was called for a name.", {"name": _TEXT}),
    "drop": ("Breaks the connection.", {}),
}


class FakeMcpState:
    """The state of the server, independent of its transport."""

    def __init__(self, home: Path, over: str) -> None:
        self._home = home
        self._over = over
        self.connections: set[Any] = set()

    @property
    def control(self) -> dict[str, Any]:
        """The current settings of the behaviour."""
        try:
            return orjson.loads((self._home / CONTROL).read_bytes())
        except FileNotFoundError:
            return {}

    def note(self, kind: str, **more: Any) -> None:
        """Append to the journal with one write, so that lines of several processes do not mix."""
        line = orjson.dumps({"kind": kind, "pid": os.getpid(), **more}) + b"\n"
        with (self._home / JOURNAL).open("ab", buffering=0) as journal:
            journal.write(line)

    def server(self, over: str | None = None) -> Server[Any]:
        """Return an MCP server of the library with this behaviour."""
        over = over or self._over

        async def called(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
            return await self._called(context, params, over)

        made: Server[Any] = Server("fake", version="1", on_list_tools=self._listed, on_call_tool=called)
        made.middleware.append(self._watch)
        return made

    def drop(self) -> None:
        """Break every connection over HTTP."""
        for connection in list(self.connections):
            connection.transport.abort()

    async def _watch(self, ctx: Any, call_next: Any) -> Any:
        if ctx.method == "server/discover" and self.control.get("legacy"):
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
        if ctx.method in ("initialize", "server/discover"):
            self.note("open")
        return await call_next(ctx)

    async def _listed(self, context: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        control = self.control
        offered = _TOOLS.copy()
        offered |= {f"extra_{at}": ("", {}) for at in range(control.get("extra_tools", 0))}
        if control.get("odd_name"):
            offered[control["odd_name"]] = ("", {})
        if control.get("schema_size"):
            offered["big"] = ("", {"text": {"type": "string", "description": "x" * control["schema_size"]}})
        tools = [
            types.Tool(name=name, description=description, input_schema=_schema(fields))
            for name, (description, fields) in offered.items()
        ]
        begin = int(params.cursor) if params is not None and params.cursor else 0
        page = _PAGE if len(tools) < 100 else 50
        end = begin + page
        return types.ListToolsResult(tools=tools[begin:end], next_cursor=str(end) if end < len(tools) else None)

    async def _called(self, context: Any, params: types.CallToolRequestParams, over: str) -> types.CallToolResult:
        arguments = dict(params.arguments or {})
        request = context.request
        headers = dict(request.headers) if request is not None and hasattr(request, "headers") else {}
        meta = cast("dict[str, Any]", params.meta or {})
        key = meta.get("idempotencyKey")
        self.note("call", tool=params.name, over=over, arguments=arguments, key=key, headers=headers)
        match params.name:
            case "echo":
                return _text(arguments["text"])
            case "add":
                total = arguments["a"] + arguments["b"]
                return _text(orjson.dumps({"sum": total}).decode(), {"sum": total})
            case "slow":
                await asyncio.sleep(arguments["seconds"])
                return _text("done")
            case "fail":
                return types.CallToolResult(content=[types.TextContent(text=arguments["message"])], is_error=True)
            case "huge":
                return _text("x" * int(arguments["size"]))
            case "picture":
                picture = types.ImageContent(data=_PIXEL, mime_type="image/png")
                return types.CallToolResult(content=[types.TextContent(text="Look:"), picture])
            case "headers":
                return _text(orjson.dumps(headers).decode(), {"headers": headers})
            case "environment":
                return _text(orjson.dumps(dict(os.environ)).decode(), {"environment": dict(os.environ)})
            case "once":
                return _text(str(self._count(arguments["name"])))
            case "drop":
                if over == "stdio":
                    os._exit(3)
                self.drop()
                return _text("too late")
            case _:
                raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")

    def _count(self, name: str) -> int:
        lines = (self._home / JOURNAL).read_bytes().rpartition(b"\n")[0].splitlines()
        entries = [orjson.loads(line) for line in lines]
        return sum(entry.get("tool") == "once" and entry["arguments"]["name"] == name for entry in entries)


def _schema(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


def _text(text: str, structured: Any = None) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=structured)


def serve_stdio(home: Path) -> None:
    """Serve over stdin and stdout until stdin ends."""
    state = FakeMcpState(home, "stdio")
    state.note("program")

    async def run() -> None:
        server = state.server()
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    asyncio.run(run())


def serve_http(home: Path, port: int, max_seconds: float) -> None:
    """Serve over HTTP."""
    asyncio.run(_serve_http(home, port, max_seconds))


async def _serve_http(home: Path, port: int, max_seconds: float) -> None:
    state = FakeMcpState(home, "http")
    manager = StreamableHTTPSessionManager(state.server())
    old = SseServerTransport("/messages/")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        control, path = state.control, scope["path"]
        authorization = dict(scope["headers"]).get(b"authorization", b"").decode()
        if path == "/_drop":
            await _respond(send, 200)
            state.drop()
        elif control.get("status"):
            await _respond(send, control["status"])
        elif control.get("token") and authorization != f"Bearer {control['token']}":
            await _respond(send, 401)
        elif path == "/mcp":
            await manager.asgi_app(scope, receive, send)
        elif path == "/sse" and scope["method"] == "GET":
            server = state.server("sse")
            async with old.connect_sse(scope, receive, send) as (read, write):
                await server.run(read, write, server.create_initialization_options())
        elif path == "/messages/":
            await old.handle_post_message(scope, receive, send)
        else:
            await _respond(send, 405)

    config = uvicorn.Config(
        app, host=HOST, port=port, lifespan="off", log_level="error", timeout_graceful_shutdown=1, access_log=False
    )
    server = _Server(config)
    state.connections = cast("set[Any]", server.server_state.connections)
    parent = os.getppid()
    loop = asyncio.get_running_loop()
    until = loop.time() + max_seconds

    def stop() -> None:
        server.should_exit = True

    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, stop)
    async with manager.run():
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():  # noqa: ASYNC110 - the library does not notify
            await asyncio.sleep(0.01)
        if server.started:
            (home / READY).write_text(str(os.getpid()))
        while not serving.done() and os.getppid() == parent and loop.time() < until:
            await asyncio.wait({serving}, timeout=_LOOK_SECONDS)
        stop()
        await serving


async def _respond(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class _Server(uvicorn.Server):
    """A server that does not install signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield
