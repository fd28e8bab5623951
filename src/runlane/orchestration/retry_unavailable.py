"""Retries of reads while the database is unavailable, so that an attempt waits instead of failing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from runlane.errors import Unavailable

T = TypeVar("T")

_PAUSE_SECONDS = 0.2


async def retry_unavailable(read: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `read` once the database is available. It ends with the attempt when the lease expires."""
    while True:
        try:
            return await read()
        except Unavailable:
            await asyncio.sleep(_PAUSE_SECONDS)
