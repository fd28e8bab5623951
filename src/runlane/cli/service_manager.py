"""The protocol of systemd's service manager: ready, stopping, and a watchdog.

Without NOTIFY_SOCKET nothing is sent. A separate thread serves the watchdog while `is_alive` returns True, because user
code is allowed to block the event loop for a while.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable


class ServiceManager:
    """The connection to the service manager. start_watchdog() and close() are safe without one."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        variables = dict(os.environ) if environment is None else environment
        address = variables.get("NOTIFY_SOCKET", "")
        # An address that begins with "@" is in Linux's abstract namespace.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        own = variables.get("WATCHDOG_PID") in (None, "", str(os.getpid()))
        self._watchdog_seconds = int(variables.get("WATCHDOG_USEC") or 0) / 1_000_000 if own else 0.0
        self._closed = threading.Event()

    def ready(self) -> None:
        """Report that the process serves requests or executes runs."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Report that the process drains."""
        self._send("STOPPING=1")

    def start_watchdog(self, is_alive: Callable[[], bool]) -> None:
        """Report that the process is alive, twice per interval of the watchdog, while `is_alive` returns True."""
        if self._address and self._watchdog_seconds > 0:
            threading.Thread(target=self._watch, args=(is_alive,), name="runlane-watchdog", daemon=True).start()

    def close(self) -> None:
        """Stop the watchdog."""
        self._closed.set()

    def _watch(self, is_alive: Callable[[], bool]) -> None:
        while not self._closed.wait(self._watchdog_seconds / 2):
            if is_alive():
                self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            try:
                sender.connect(self._address)
                sender.send(message.encode())
            except OSError:
                pass  # the manager is restarting; it expects the message again after the next start of this process


class LoopPulse:
    """Detects whether the event loop has turned since the last call of `is_alive`. The first call returns True."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turned = threading.Event()
        self._turned.set()

    def is_alive(self) -> bool:
        """Return whether the loop has turned since the last call, and schedule the next turn."""
        turned = self._turned.is_set()
        self._turned.clear()
        try:
            self._loop.call_soon_threadsafe(self._turned.set)
        except RuntimeError:
            return False  # the loop is closed
        return turned
