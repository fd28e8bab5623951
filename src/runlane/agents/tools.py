"""Tools that are called outside of this process: what they raise, and what calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from runlane.agents.models import ToolOffer
from runlane.model.definition import McpServer, Tool


class ToolFailed(Exception):
    """A tool gave no result. `passing` means that calling it again may help.

    `begun` is False if the call certainly had no effect: nothing was sent.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        passing: bool = False,
        retry_after_seconds: float | None = None,
        begun: bool = True,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.passing = passing
        self.retry_after_seconds = retry_after_seconds
        self.begun = begun


class StillAtWork(Exception):
    """There will be a result, but not soon: come again in a while. Asking again starts nothing anew."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason)
        self.reason = reason
        self.seconds = seconds


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
