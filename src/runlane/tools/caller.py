"""Interfaces of tools outside this process: their callers and their failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from runlane.definitions.schema.definition import McpServer, Tool
from runlane.domain.text import dump_json
from runlane.llm.models import ToolOffer
from runlane.templates.json_schema import cut, misfit


class ToolFailed(Exception):
    """A tool call failed. `retryable` means that a retry may succeed.

    `begun` is False if the call certainly had no effect: it was not sent, or it was rejected before execution.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        retry_after_seconds: float | None = None,
        begun: bool = True,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds
        self.begun = begun


class ToolPending(Exception):
    """The result is not available yet. Call again later; a repeated call does not start the work again."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason)
        self.reason = reason
        self.seconds = seconds


def fitting(tool: Tool, value: Any) -> Any:
    """Return the result of a tool, reduced to its schema. Raise ToolFailed if it does not match the schema."""
    if tool.output_schema is None:
        return value
    value = cut(value, tool.output_schema)
    problem = misfit(value, tool.output_schema, "the result")
    if problem is not None:
        raise ToolFailed("tool_output", f'The result of the tool "{tool.name}" does not match its schema: {problem}.')
    return value


def bounded(tool: Tool, value: Any) -> Any:
    """Do the same as `fitting`, and also raise ToolFailed if the result exceeds max_output_bytes."""
    value = fitting(tool, value)
    size = _size(value)
    if size > tool.max_output_bytes:
        raise ToolFailed(
            "tool_output",
            f'The tool "{tool.name}" was called, but its result has {size} bytes; at most {tool.max_output_bytes} are '
            "allowed (max_output_bytes). Request less data.",
        )
    return value


def _size(value: Any) -> int:
    try:
        return len((value if isinstance(value, str) else dump_json(value)).encode(errors="replace"))
    except TypeError:
        # The code that stores the value reports the reason why it cannot be stored.
        return 0


class ToolCaller(Protocol):
    """Calls tools of one type. `key` is the same if a call is repeated after a crash."""

    async def __call__(self, tool: Tool, arguments: Mapping[str, Any], key: str, /) -> Any: ...


class McpCaller(Protocol):
    """Lists and calls the tools of MCP servers."""

    async def tools(self, server: McpServer, /) -> Sequence[ToolOffer]:
        """Return the tools of the server with the names that the server uses. Raise ToolFailed."""
        ...

    async def call(self, server: McpServer, name: str, arguments: Mapping[str, Any], key: str, /) -> Any:
        """Call a tool and return its result. Raise ToolFailed."""
        ...
