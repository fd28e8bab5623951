"""Read the log of a run page by page, from a server or from a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from runlane.domain.views import LogLine, Logs

LOG_PAGE: Final = 1000
_PAUSE_SECONDS: Final = 0.5


async def read_log_lines(
    read: Callable[[int], Awaitable[Logs]], since: int, *, follow: bool
) -> AsyncGenerator[LogLine]:
    """Yield the lines of the pages that `read` returns from an index on; with `follow` until the run has ended."""
    while True:
        page = await read(since)
        for line in page.lines:
            yield line
        moved, since = page.next_index > since, page.next_index
        if page.complete or not (moved or follow):
            return
        if not moved:
            await asyncio.sleep(_PAUSE_SECONDS)
