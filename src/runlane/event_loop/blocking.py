"""Synchronous access to an app: an event loop in a daemon thread, started when it is first needed."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BlockingLoop:
    """Runs coroutines for threads that wait. `close` is awaited in the loop when the interpreter exits."""

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self._close = close
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for its result."""
        if self._pid != os.getpid():
            # A fork copies the loop but not its thread, and possibly a lock that is never released here.
            self._lock, self._loop, self._pid = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="runlane-bridge", daemon=True).start()
                atexit.register(self._stop)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _stop(self) -> None:
        loop = self._loop
        if loop is None or self._pid != os.getpid():
            return  # stopped before, or a fork that never used it

        async def close() -> None:
            await self._close()

        self.run(close())
        self._loop = None
        loop.call_soon_threadsafe(loop.stop)
