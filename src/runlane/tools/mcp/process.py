"""MCP servers that are local processes. They are started and ended with a connection.

They inherit only the environment variables that a program needs to start. The length of a line is limited. The end of
stderr is kept, because it shows why a process ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from runlane.tools.mcp.endpoint import McpEndpoint

INHERITED: Final = ("PATH", "HOME", "LANG")
_TAIL: Final = 16_384
_LEAVE_SECONDS: Final = 2.0
_PIECE: Final = 65536


class McpProcess:
    """The state of the process of a connection."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.too_long = False
        self.drained = anyio.Event()
        self._errors = b""
        self._is_cut = False

    def stderr_tail(self, target: McpEndpoint, most: int) -> str:
        """Return the end of stderr without secrets."""
        text = target.redact(self._errors.decode(errors="replace"))
        # A secret without its beginning cannot be recognized, so as many characters as the longest secret has are
        # skipped.
        skipped = len(target.forms[0]) if self._is_cut and target.forms else 0
        return text[skipped:].strip()[-most:]

    async def listen(self, stream: asyncio.StreamReader) -> None:
        """Read stderr until its end, because a full pipe would block the program."""
        while piece := await stream.read(_PIECE):
            errors = self._errors + piece
            self._is_cut = self._is_cut or len(errors) > _TAIL
            self._errors = errors[-_TAIL:]
        self.drained.set()


@asynccontextmanager
async def program_streams(target: McpEndpoint, most: int, program: McpProcess) -> AsyncGenerator[tuple[Any, Any]]:
    """Start the program and yield its streams. Raise OSError or ValueError if it cannot be started."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        target.server.command or "",
        *target.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=inherited | dict(target.env),
        limit=most,
        # The program gets its own process group: it is ended with its children, and an interrupt at the terminal does
        # not reach it.
        start_new_session=True,
    )
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise OSError("the process has no pipes")
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)

    async def read() -> None:
        async with incoming:
            try:
                while line := await stdout.readline():
                    message = _parsed(line)
                    if message is not None:
                        await incoming.send(message)
            except ValueError:
                program.too_long = True
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                return

    async with anyio.create_task_group() as tasks:
        try:
            tasks.start_soon(read)
            tasks.start_soon(program.listen, stderr)
            yield read_stream, _Input(stdin, incoming.close)
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
                program.code = process.returncode
                # The last output of the program may not have been read yet.
                with anyio.move_on_after(_LEAVE_SECONDS):
                    await program.drained.wait()
            incoming.close()
            read_stream.close()
            tasks.cancel_scope.cancel()


class _Input:
    """The program's input. A line that was not written completely is treated as not sent."""

    def __init__(self, stdin: asyncio.StreamWriter, lost: Callable[[], None]) -> None:
        self._stdin = stdin
        self._lost = lost

    async def send(self, message: SessionMessage) -> None:
        line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            self._stdin.write(line.encode() + b"\n")
            await self._stdin.drain()
        except OSError:
            # Responses to other requests will not arrive either.
            self._lost()
            raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """Do nothing, because the input is closed with the program."""


def _parsed(line: bytes) -> SessionMessage | None:
    """Return a message; None for any other line, such as a greeting that some programs print."""
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError:
        return None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close the input of the program, as the protocol requires. Then end its process group, with SIGTERM first."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    for step in (None, signal.SIGTERM, signal.SIGKILL):
        if step is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, step)
        if await _gone(process):
            break
    # Close this side of the pipes. Child processes may keep the other side open.
    transport: Any = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


async def _gone(process: asyncio.subprocess.Process) -> bool:
    # wait() is not used because it also waits for the pipes, which child processes may keep open.
    with anyio.move_on_after(_LEAVE_SECONDS):
        while process.returncode is None:  # noqa: ASYNC110 - asyncio has no event for it
            await anyio.sleep(0.01)
    return process.returncode is not None
