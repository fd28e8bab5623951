"""Servers that are processes of this machine: started for a connection, and ended with it.

They get nothing of our environment but what a program needs to start. A line of theirs is bounded, and the end of what
they write to stderr is kept, since it shows why one ended.
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
    """What is known about the process of a connection."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.too_long = False
        self.heard = anyio.Event()
        self._errors = b""
        self._is_cut = False

    def last_words(self, target: McpEndpoint, most: int) -> str:
        """The end of what it wrote to stderr, without secrets."""
        told = target.redact(self._errors.decode(errors="replace"))
        # The end of a secret whose beginning is gone cannot be recognised; it is no longer than the longest one.
        skipped = len(target.forms[0]) if self._is_cut and target.forms else 0
        return told[skipped:].strip()[-most:]

    async def listen(self, stream: asyncio.StreamReader) -> None:
        """Read stderr to its end: a full pipe would stop the program."""
        while piece := await stream.read(_PIECE):
            told = self._errors + piece
            self._is_cut = self._is_cut or len(told) > _TAIL
            self._errors = told[-_TAIL:]
        self.heard.set()


@asynccontextmanager
async def program_streams(target: McpEndpoint, most: int, program: McpProcess) -> AsyncGenerator[tuple[Any, Any]]:
    """Start the program; its messages in both directions. Raises OSError or ValueError if it cannot be started."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        target.server.command or "",
        *target.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=inherited | dict(target.env),
        limit=most,
        # A group of its own, so that it ends with all that it started, and not by an interrupt typed at our terminal.
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
                # What it said last is on its way to us.
                with anyio.move_on_after(_LEAVE_SECONDS):
                    await program.heard.wait()
            incoming.close()
            read_stream.close()
            tasks.cancel_scope.cancel()


class _Input:
    """The program's input. A line that it did not get as a whole, it did not get."""

    def __init__(self, stdin: asyncio.StreamWriter, lost: Callable[[], None]) -> None:
        self._stdin = stdin
        self._lost = lost

    async def send(self, message: SessionMessage) -> None:
        line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            self._stdin.write(line.encode() + b"\n")
            await self._stdin.drain()
        except OSError:
            # What others wait for will not come either.
            self._lost()
            raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """Nothing: the input is closed with the program."""


def _parsed(line: bytes) -> SessionMessage | None:
    """A message; None for a line that is none, such as a greeting, which some programs print."""
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError:
        return None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close its input, as the protocol wants it; then end its group, first kindly."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    for step in (None, signal.SIGTERM, signal.SIGKILL):
        if step is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, step)
        if await _gone(process):
            break
    # Closes our ends of its pipes, which another process may still hold on the other side.
    transport: Any = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


async def _gone(process: asyncio.subprocess.Process) -> bool:
    # Not wait(): that also waits for the pipes, which what it started may keep open.
    with anyio.move_on_after(_LEAVE_SECONDS):
        while process.returncode is None:  # noqa: ASYNC110 - there is no event to wait for
            await anyio.sleep(0.01)
    return process.returncode is not None
