"""The measuring process's end of the notes: a socket that tasks in any worker process write to."""

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
class Letter:
    """One note: what happened, to which key, in which process, when (nanoseconds, the host's clock)."""

    kind: str
    key: int
    pid: int
    at_ns: int


class Mailbox:
    """Open for the length of a `with` block."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="runlane-bench-"))
        self.path = str(self._home / "notes")
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._link.setblocking(False)
        self._link.bind(self.path)
        # Workers run as this user, but the folder must not depend on its umask.
        self._home.chmod(0o700)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._link.close()
        shutil.rmtree(self._home)

    async def next(self, kind: str, key: int, timeout_seconds: float) -> Letter:
        """The next note of this kind and key; others that arrive meanwhile are thrown away."""
        async with asyncio.timeout(timeout_seconds):
            while True:
                data = await asyncio.get_running_loop().sock_recv(self._link, 4096)
                words = data.decode().split()
                letter = Letter(words[0], int(words[1]), int(words[2]), int(words[3]))
                if (letter.kind, letter.key) == (kind, key):
                    return letter

    def empty(self) -> None:
        """Throw away what has arrived."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._link.recv(4096)
