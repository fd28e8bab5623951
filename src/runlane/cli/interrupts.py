"""Ctrl-C for commands that wait in an event loop.

asyncio leaves SIGINT to Python, which looks for it between two instructions. One that comes right before the loop goes
to sleep is only seen when something else wakes it: for a command that follows a quiet run, seconds later. Here the
signal itself wakes the loop.
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
    """asyncio.run() whose Ctrl-C is heard at once."""

    async def heard() -> T:
        with _signals_wake(asyncio.get_running_loop()):
            return await main

    return asyncio.run(heard())


@contextlib.contextmanager
def _signals_wake(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        loop.add_reader(ours, ours.recv, 4096)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(ours)
