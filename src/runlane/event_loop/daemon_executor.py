"""Daemon threads for work that would block an event loop, started when they are needed.

A ThreadPoolExecutor does not serve here: it waits for its threads when the interpreter exits, so a function that hangs
would keep a stopping worker alive until it is killed; and it refuses work in exit handlers, where a database is closed.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

_Job = tuple[asyncio.Future[Any] | None, contextvars.Context, Callable[[], Any]]


class DaemonExecutor:
    """Runs plain functions for one event loop, in at most `limit` threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, limit: int) -> None:
        self._loop = loop
        self._name = name
        self._limit = limit
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._idle = 0
        self._started = 0
        self._lock = threading.Lock()

    def submit(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run the function in a thread; the future belongs to the event loop."""
        future: asyncio.Future[Any] = self._loop.create_future()
        with self._lock:
            start = self._idle <= 0 and self._started < self._limit
            if start:
                self._started += 1
            else:
                # A negative number counts the jobs that wait for a thread.
                self._idle -= 1
        self._jobs.put((future, contextvars.copy_context(), function))
        if start:
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        return future

    def abandon(self, last: Callable[[], Any]) -> None:
        """End the threads of a loop that is closed already, after one last job whose result is dropped."""
        self._jobs.put((None, contextvars.copy_context(), last))
        self.stop()

    def stop(self) -> None:
        """End the threads once they have done what was submitted; those that never finish end with the process."""
        with self._lock:
            for _ in range(self._started):
                self._jobs.put(None)
            self._started = 0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, context, function = job
            result, error = None, None
            try:
                result = context.run(function)
            except BaseException as raised:  # noqa: BLE001 - set on the future
                error = raised
            with self._lock:
                self._idle += 1
            if future is None:
                continue
            try:
                self._loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                return  # the loop is closed, so the process is ending
            del job, future, context, function, result, error


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        # A future cannot carry StopIteration.
        future.set_exception(RuntimeError("The task raised StopIteration."))
    else:
        future.set_exception(error)
