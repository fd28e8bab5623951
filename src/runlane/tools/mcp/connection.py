"""A connection to an MCP server. One task owns it, because the library must open and close it in the same task.

Many calls use it at once, each in its own task, so that a call that hangs or is cancelled does not affect other calls.
The connection closes when it is idle. When it is found to be broken, it accepts no more calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar, cast

import anyio
import httpx2
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_PARAMS, REQUEST_TIMEOUT, Implementation
from pydantic import ValidationError

from runlane.outbound import Outbound, OutboundLimits
from runlane.tools.caller import ToolFailed
from runlane.tools.mcp.endpoint import McpEndpoint
from runlane.tools.mcp.process import McpProcess, program_streams
from runlane.tools.mcp.trace import TRACE, RequestTrace, copy_of
from runlane.tools.mcp.transport import TracedTransport, broken, refusal, too_large
from runlane.version import VERSION

# The library logs headers and messages of servers. Errors are reported by the waiting caller instead.
logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)

T = TypeVar("T")

MAX_CONNECT_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 6.0
_ROOM: Final = 256 * 1024
_MIN_MESSAGE: Final = 4 * 1024 * 1024
_MAX_MESSAGE: Final = 2000
# The statuses with which old servers, which lack streamable HTTP, reject it.
_OLD: Final = (400, 404, 405, 406, 410, 415, 501)
# The library cannot read a larger event of an old server and would end the connection.
_MAX_OLD_EVENT: Final = 1024 * 1024 - 1024
_CONNECTION_LOST: Final = ("Connection closed", "SSE stream")
# Messages of the library for a response that has only a status.
_STAND_INS: Final = ("Not Found", "Session terminated", "Server returned an error response")
# Streams do not end, and calls have their own limits.
_LIMITS: Final = OutboundLimits(read_seconds=None, total_seconds=None, max_body_bytes=None)


class McpConnection:
    """One connection. `open` is False when it accepts no more calls."""

    def __init__(self, target: McpEndpoint, outbound: Outbound, idle_seconds: float) -> None:
        self.open = True
        self._target = target
        self._outbound = outbound
        self._idle_seconds = idle_seconds
        # A structured result contains its text twice, with escaped quotes.
        self._most = max(_MIN_MESSAGE, 4 * target.server.max_output_bytes + _ROOM)
        self._flaw: Callable[[], ToolFailed | None] = lambda: None
        self._calls: set[asyncio.Task[Any]] = set()
        self._waiting = 0
        self._changed = asyncio.Event()
        self._closing = False
        loop = asyncio.get_running_loop()
        self._used_at = loop.time()
        self._ready: asyncio.Future[Client | ToolFailed] = loop.create_future()
        # The task has its own context, because the connection does not belong to a run.
        self._owner = asyncio.create_task(self._own(), context=contextvars.Context())

    @property
    def busy(self) -> bool:
        """Whether calls are in flight, or the connection is still being opened."""
        return bool(self._calls) or self._waiting > 0 or not self._ready.done()

    @property
    def used_at(self) -> float:
        """The time of the last use, by the loop's clock."""
        return self._used_at

    def retire(self) -> None:
        """Accept no more calls, and close after the calls in flight."""
        self.open = False
        self._changed.set()

    async def close(self) -> None:
        """Close the connection, even with calls in flight. Return when its task has ended."""
        self.open, self._closing = False, True
        self._changed.set()
        await asyncio.wait({self._owner}, timeout=_CLOSE_SECONDS)
        self._owner.cancel()
        for call in self._calls:
            call.cancel()
        await asyncio.wait({self._owner, *self._calls})

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call this when the connection is closed."""
        self._owner.add_done_callback(lambda _: callback())

    async def request(self, send: Callable[[Client], Awaitable[T]], seconds: float) -> T:
        """Return the result of `send` with the open connection. Raise ToolFailed."""
        # The call is counted from the start, so that the connection is not closed as idle while it is being opened.
        self._waiting += 1
        try:
            client = await asyncio.shield(self._ready)
        finally:
            self._waiting -= 1
            self._touch()
        if isinstance(client, ToolFailed):
            raise copy_of(client)
        trace = RequestTrace()
        context = contextvars.copy_context()
        context.run(TRACE.set, trace)
        call = asyncio.create_task(_sent(send, client), context=context)
        self._calls.add(call)
        call.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait({call, trace.failed}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            message = f'The MCP server "{self._target.name}" did not respond within {seconds:g} s.'
            raise ToolFailed("mcp_timeout", message, retryable=True, begun=trace.sent) from None
        finally:
            if not call.done():
                call.cancel()
        if trace.failure is not None:
            raise self._noted(trace.failure)
        try:
            return call.result()
        except asyncio.CancelledError:
            raise self._noted(broken(self._target.name)) from None
        except Exception as error:  # noqa: BLE001 - any error of the library fails the call
            raise self._noted(self._why(error, trace)) from None

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        self._touch()
        if not call.cancelled():
            call.exception()

    def _touch(self) -> None:
        self._used_at = asyncio.get_running_loop().time()
        self._changed.set()

    def _noted(self, failure: ToolFailed) -> ToolFailed:
        if failure.code == "mcp_unreachable" or self._flaw() is not None:
            self.retire()
        return copy_of(failure)

    # --- the owner

    async def _own(self) -> None:
        try:
            failure = await self._live()
            if not self._ready.done():
                self._ready.set_result(failure)
        finally:
            self.open = False
            if not self._ready.done():
                self._ready.set_result(broken(self._target.name))

    async def _live(self) -> ToolFailed:
        """Open the connection, keep it open while it is used, and close it. Return the reason for the close."""
        if self._target.server.server_type == "stdio":
            return await self._live_over(self._program)
        trace = RequestTrace()
        failure = await self._live_over(self._streamable, trace)
        if self._ready.done() or trace.status not in _OLD:
            return failure
        older = RequestTrace()
        failure_of_old = await self._live_over(self._old, older)
        # If a server supports neither transport, the error of the newer transport is reported.
        return failure if older.status in _OLD else failure_of_old

    async def _live_over(
        self, connect: Callable[[AsyncExitStack], Awaitable[Any]], trace: RequestTrace | None = None
    ) -> ToolFailed:
        trace = trace or RequestTrace()
        TRACE.set(trace)
        seconds = connect_seconds(self._target)
        deadline = asyncio.timeout(seconds)
        try:
            async with AsyncExitStack() as stack:
                async with deadline:
                    transport = await connect(stack)
                    info = Implementation(name="runlane", version=VERSION)
                    client = await stack.enter_async_context(Client(transport, client_info=info, cache=None))
                self._ready.set_result(client)
                await self._until_unused()
        except Exception as error:  # noqa: BLE001 - any error of the library ends the connection
            if deadline.expired():
                message = f'The MCP server "{self._target.name}" did not open a connection within {seconds:g} s.'
                return ToolFailed("mcp_timeout", message, retryable=True, begun=False)
            failure = trace.failure or self._why(error, trace)
            return ToolFailed(
                failure.code,
                failure.message,
                retryable=failure.retryable,
                retry_after_seconds=failure.retry_after_seconds,
                begun=False,
            )
        return broken(self._target.name)

    async def _until_unused(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closing and (self.open or self.busy):
            left = self._used_at + self._idle_seconds - loop.time()
            if not self.busy and left <= 0:
                break
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self.busy else left):
                    await self._changed.wait()
        self.open = False

    # --- transports

    async def _streamable(self, stack: AsyncExitStack) -> Any:
        http = await stack.enter_async_context(self._http(apart=False))
        return _marking(streamable_http_client(self._target.url, http_client=http, max_sse_event_size=None))

    async def _old(self, stack: AsyncExitStack) -> Any:
        def made(
            headers: dict[str, str] | None = None,
            timeout: httpx2.Timeout | None = None,
            auth: httpx2.Auth | None = None,
        ) -> httpx2.AsyncClient:
            return self._http(apart=True)

        return _marking(sse_client(self._target.url, httpx_client_factory=made))

    async def _program(self, stack: AsyncExitStack) -> Any:
        program = McpProcess()
        self._flaw = lambda: self._ended_program(program)
        return _marking(program_streams(self._target, self._most, program))

    def _http(self, *, apart: bool) -> httpx2.AsyncClient:
        most = min(self._most, _MAX_OLD_EVENT) if apart else self._most
        watched = TracedTransport(self._outbound.transport(_LIMITS), self._target.name, most, apart=apart)
        self._flaw = lambda: watched.flaw
        return httpx2.AsyncClient(
            transport=watched,
            headers={"user-agent": f"runlane/{VERSION}", **self._target.headers},
            timeout=httpx2.Timeout(**_LIMITS.timeouts),
            trust_env=False,
            follow_redirects=False,
        )

    # --- errors

    def _why(self, error: BaseException, trace: RequestTrace) -> ToolFailed:
        name = self._target.name
        error = _first(error)
        if isinstance(error, ToolFailed):
            return error
        flaw = self._flaw()
        if flaw is not None:
            return flaw
        # Some servers send a protocol error together with the status.
        own = isinstance(error, MCPError) and error.message not in _STAND_INS
        lost = trace.session and trace.status in (400, 404)
        if trace.status >= 300 and (not own or lost or trace.status in (401, 403) or trace.status >= 500):
            return refusal(name, trace)
        if isinstance(error, MCPError):
            return self._translate_error(error, trace)
        if isinstance(error, ValidationError):
            return ToolFailed("mcp_protocol", f'The MCP server "{name}" sent a response that violates the protocol.')
        if isinstance(error, (OSError, ValueError)) and self._target.server.server_type == "stdio" and not trace.sent:
            reason = getattr(error, "strerror", None) or "it is not a program"
            message = f'The program of the MCP server "{name}" cannot be started: {reason}.'
            return ToolFailed("mcp_unreachable", message, begun=False)
        if isinstance(error, httpx2.InvalidURL):
            # A URL with an address such as 0177.0.0.1 is never called.
            return ToolFailed(
                "mcp_refused", f'The MCP server "{name}" must not be called. Its URL is not valid.', begun=False
            )
        if isinstance(error, (OSError, httpx2.HTTPError)):
            message = f'The MCP server "{name}" cannot be reached.'
            return ToolFailed("mcp_unreachable", message, retryable=True, begun=trace.sent)
        return ToolFailed("mcp_protocol", f'The MCP server "{name}" cannot be used: {type(error).__name__}.')

    def _translate_error(self, error: MCPError, trace: RequestTrace) -> ToolFailed:
        """Return the failure for a protocol error."""
        name = self._target.name
        message = self._target.redact(error.message, _MAX_MESSAGE)
        if error.code == CONNECTION_CLOSED and error.message.startswith(_CONNECTION_LOST):
            failure = broken(name)
            failure.begun = trace.sent
            return failure
        if error.code == REQUEST_TIMEOUT:
            return ToolFailed("mcp_timeout", f'The MCP server "{name}" did not respond in time.', retryable=True)
        if error.code in (INVALID_PARAMS, INTERNAL_ERROR, 0) or error.code > -32000 or error.code < -32768:
            return ToolFailed("tool_failed", message or f'The MCP server "{name}" reported an error.')
        return ToolFailed("mcp_protocol", f'The MCP server "{name}" returned an error: {message}')

    def _ended_program(self, program: McpProcess) -> ToolFailed | None:
        name = self._target.name
        if program.too_long:
            return too_large(name, self._most)
        if program.code is None or self._ready.done():
            return None
        last = program.stderr_tail(self._target, _MAX_MESSAGE)
        message = f'The program of the MCP server "{name}" ended with code {program.code}.'
        return ToolFailed("mcp_unreachable", f"{message} Its last output: {last}" if last else message, begun=False)


def connect_seconds(target: McpEndpoint) -> float:
    """Return how long opening a connection may take. The limit leaves time to report a call that never began."""
    return min(MAX_CONNECT_SECONDS, target.server.timeout_seconds / 2)


async def _sent(send: Callable[[Client], Awaitable[T]], client: Client) -> T:
    return await send(client)


def _first(error: BaseException) -> BaseException:
    """Return the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


@asynccontextmanager
async def _marking(transport: Any) -> AsyncGenerator[tuple[Any, Any]]:
    async with transport as (read, write):
        yield read, _Marking(write)


class _Marking:
    """A stream that marks a request as sent. A request that was sent may have an effect."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def send(self, item: Any) -> None:
        trace = TRACE.get() or RequestTrace()
        # The mark is set before the request is sent, because an interrupted request may still arrive.
        trace.sent = True
        try:
            await self._inner.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            trace.sent = False
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> _Marking:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
