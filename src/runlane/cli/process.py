"""What the processes of `runlane dev`, `serve` and `worker` share: the event loop, signals, and the exit."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

import structlog

from runlane.cli.output import split_names
from runlane.errors import InvalidRequest

log = structlog.get_logger(__name__)

T = TypeVar("T")

# The exit code of a process whose event loop is blocked; its supervisor starts another one.
STUCK_EXIT_CODE: Final = 70
# Logged when a drain begins, for a person at the terminal.
SECOND_SIGNAL: Final = "Press Ctrl-C again, or send SIGTERM again, to hand unfinished runs back at once."


def run_process(main: Coroutine[Any, Any, bool]) -> None:
    """Run the process to its end. `main` returns whether code is stuck in a thread."""
    if _run_loop(main):
        # A thread that does not stop would keep the interpreter alive; its run has been handed back.
        _exit_now(0)


def _run_loop(main: Coroutine[Any, Any, T]) -> T:
    # Objects that live as long as the process need not be searched by the garbage collector.
    gc.freeze()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def handle_signals(stop: Callable[[], None], stop_now: Callable[[], None]) -> None:
    """On SIGTERM and SIGINT, call the first function, then the second, then exit."""
    actions = iter((stop, stop_now))

    def handle() -> None:
        next(actions, lambda: os._exit(130))()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle)


def end_stuck_process() -> None:
    """End this process from another thread, because its event loop is blocked."""
    log.error("ending_stuck_process", exit_code=STUCK_EXIT_CODE)
    _exit_now(STUCK_EXIT_CODE)


def _exit_now(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def lane_names(lanes: str | None) -> list[str] | None:
    """Return the lanes of a comma-separated option; None for all."""
    names = split_names(lanes)
    if lanes is not None and not names:
        raise InvalidRequest("--lanes is empty. Give lanes, comma-separated, or leave it out to serve all of them.")
    return names or None
