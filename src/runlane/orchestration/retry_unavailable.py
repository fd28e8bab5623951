"""Retries of reads while the database is unavailable, so that an attempt waits instead of failing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from runlane.errors import Unavailable

T = TypeVar("T")

_PAUSE_SECONDS = 0.2


async def retry_unavailable(look: Callable[[], Awaitable[T]]) -> T:
    """What `look` gives, once the database answers. A worker whose lease ends meanwhile stops the run, and this."""
    while True:
        try:
            return await look()
        except Unavailable:
            await asyncio.sleep(_PAUSE_SECONDS)
