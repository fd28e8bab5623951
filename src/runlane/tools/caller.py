"""Tools that are called outside of this process: what they raise, and what calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from runlane.definitions.schema.definition import McpServer, Tool
from runlane.domain.text import dump_json
from runlane.llm.models import ToolOffer
from runlane.templates.json_schema import cut, misfit


class ToolFailed(Exception):
    """A tool gave no result. `retryable` means that calling it again may help.

    `begun` is False if the call had no effect: nothing was sent, or it was turned away before anything was done.
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
    """The result takes longer: call again later. A repeated call starts nothing new."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason)
        self.reason = reason
        self.seconds = seconds


def fitting(tool: Tool, value: Any) -> Any:
    """The result of a tool, cut to what its schema names. Raises ToolFailed if it does not fit."""
    if tool.output_schema is None:
        return value
    value = cut(value, tool.output_schema)
    wrong = misfit(value, tool.output_schema, "the answer")
    if wrong is not None:
        raise ToolFailed("tool_output", f'The answer of the tool "{tool.name}" does not fit its schema: {wrong}.')
    return value


def bounded(tool: Tool, value: Any) -> Any:
    """The same for a tool whose output was not bounded by max_output_bytes: a larger result is an error, too."""
    value = fitting(tool, value)
    size = _size(value)
    if size > tool.max_output_bytes:
        raise ToolFailed(
            "tool_output",
            f'The tool "{tool.name}" was called, but its result has {size} bytes; at most {tool.max_output_bytes} are '
            "taken (max_output_bytes). Ask it for less.",
        )
    return value


def _size(value: Any) -> int:
    try:
        return len((value if isinstance(value, str) else dump_json(value)).encode(errors="replace"))
    except TypeError:
        # The code that stores it reports why it cannot be stored.
        return 0


class ToolCaller(Protocol):
    """Calls tools of one type. `key` is the same when a call is made again after a crash."""

    async def __call__(self, tool: Tool, arguments: Mapping[str, Any], key: str, /) -> Any: ...


class McpCaller(Protocol):
    """Asks MCP servers for their tools, and calls them."""

    async def tools(self, server: McpServer, /) -> Sequence[ToolOffer]:
        """What the server offers, by the names that it uses itself. Raises ToolFailed."""
        ...

    async def call(self, server: McpServer, name: str, arguments: Mapping[str, Any], key: str, /) -> Any:
        """The result of a tool. Raises ToolFailed."""
        ...
