"""The way in for code without an event loop: a loop in a daemon thread, started when it is first needed."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Bridge:
    """Runs coroutines for threads that wait. `close` is awaited in the loop when the interpreter exits."""

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self._close = close
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for its result."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="runlane-bridge", daemon=True).start()
                atexit.register(self._stop)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _stop(self) -> None:
        async def close() -> None:
            await self._close()

        self.run(close())
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
