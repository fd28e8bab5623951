"""Receive notifications from tasks in any worker process, over a datagram socket."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Notification:
    """What happened, to which key, in which process, and when (nanoseconds, the host's clock)."""

    kind: str
    key: int
    pid: int
    at_ns: int


class Receiver:
    """A socket that is open for the duration of a `with` block."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="runlane-bench-"))
        self.path = str(self._folder / "notifications")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self.path)
        # Workers run as the same user, but the folder must not depend on its umask.
        self._folder.chmod(0o700)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()
        shutil.rmtree(self._folder)

    async def next(self, kind: str, key: int, timeout_seconds: float) -> Notification:
        """Wait for the next notification of this kind and key, and discard others."""
        async with asyncio.timeout(timeout_seconds):
            while True:
                data = await asyncio.get_running_loop().sock_recv(self._socket, 4096)
                words = data.decode().split()
                notification = Notification(words[0], int(words[1]), int(words[2]), int(words[3]))
                if (notification.kind, notification.key) == (kind, key):
                    return notification

    def clear(self) -> None:
        """Discard the notifications that have arrived."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(4096)
