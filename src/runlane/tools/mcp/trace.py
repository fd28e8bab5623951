"""The state of one HTTP request: whether it was sent, its status and its failure.

The library executes a request in the caller's context, so a context variable identifies the request in the transport.
The caller receives failures at once that the library would lose or report too late.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Final

from runlane.tools.caller import ToolFailed


class RequestTrace:
    """One request, or the opening of a connection."""

    __slots__ = ("failed", "retry_after", "sent", "session", "status")

    def __init__(self) -> None:
        self.sent = False
        self.session = False
        self.status = 0
        self.retry_after: str | None = None
        self.failed: asyncio.Future[ToolFailed] = asyncio.get_running_loop().create_future()

    def fail(self, failure: ToolFailed) -> None:
        """Report a failure to the waiting caller. The first failure is used."""
        if not self.failed.done():
            self.failed.set_result(failure)

    @property
    def failure(self) -> ToolFailed | None:
        """The failure, if the request has failed."""
        return self.failed.result() if self.failed.done() else None


TRACE: Final[ContextVar[RequestTrace | None]] = ContextVar("runlane_mcp_trace", default=None)


def copy_of(failure: ToolFailed) -> ToolFailed:
    """Return a copy for another waiting caller, because raising an exception twice mixes its tracebacks."""
    return ToolFailed(
        failure.code,
        failure.message,
        retryable=failure.retryable,
        retry_after_seconds=failure.retry_after_seconds,
        begun=failure.begun,
    )
