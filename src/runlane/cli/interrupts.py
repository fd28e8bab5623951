"""Ctrl-C for commands that wait in an event loop.

asyncio leaves SIGINT to Python, which checks for it between two instructions. A signal right before the loop starts to
wait is handled only when something else wakes the loop: for a command that follows a quiet run, seconds later. Here
the signal itself wakes the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def run_interruptibly(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like asyncio.run(), but handle Ctrl-C at once."""

    async def call() -> T:
        with _signals_wake(asyncio.get_running_loop()):
            return await main

    return asyncio.run(call())


@contextlib.contextmanager
def _signals_wake(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        loop.add_reader(reader, reader.recv, 4096)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)
