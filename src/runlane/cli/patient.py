"""Telling whoever waits at a terminal that a server does not answer, while it is still being tried."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator
from contextlib import contextmanager

_QUIET_SECONDS = 2.0


@contextmanager
def patient(url: str) -> Generator[None]:
    """Say on stderr, once, that there is no answer yet, if that takes longer than a moment."""

    def say() -> None:
        print(
            f"{url} does not answer yet; trying on. If no server runs there, start one: runlane dev APP",
            file=sys.stderr,
            flush=True,
        )

    telling = asyncio.get_running_loop().call_later(_QUIET_SECONDS, say)
    try:
        yield
    finally:
        telling.cancel()
