"""What became of one request on the wire: whether it was sent, how it was answered, why it failed.

The library hands our context on to whatever it does for a request, so a context variable identifies the request in the
transport. The caller learns at once what the library would lose or report too late.
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
        """Notify the waiting caller. The first reason counts."""
        if not self.failed.done():
            self.failed.set_result(failure)

    @property
    def failure(self) -> ToolFailed | None:
        """Why it failed, if that is known here."""
        return self.failed.result() if self.failed.done() else None


TRACE: Final[ContextVar[RequestTrace | None]] = ContextVar("runlane_mcp_trace", default=None)


def copy_of(failure: ToolFailed) -> ToolFailed:
    """The same failure for another one who waits: an exception that is raised twice mixes up its tracebacks."""
    return ToolFailed(
        failure.code,
        failure.message,
        retryable=failure.retryable,
        retry_after_seconds=failure.retry_after_seconds,
        begun=failure.begun,
    )
