"""A provider that only counts the calls in flight, independent of the code under test."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import Self


class Meter:
    """Answers each call after `seconds` with "done", or with "slow" while that is set."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.port = 0
        self.now = self.most = self.calls = 0
        self.by_pid: Counter[int] = Counter()
        self.begun_at: list[float] = []
        self._slow = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()

    def start_measuring(self) -> None:
        """Forget what was measured so far."""
        self.most = self.now

    def slow_next(self) -> None:
        """Answer the next call that ends with "slow"."""
        self._slow += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await self._measure(reader, writer)

    async def _measure(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid = int(await reader.readline() or b"0")
        self.calls += 1
        self.begun_at.append(time.monotonic())
        self.by_pid[pid] += 1
        self._count(1)
        try:
            async with asyncio.timeout(self.seconds):
                # The caller sends nothing more, so this ends early only when the caller is gone.
                await reader.read()
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self.by_pid[pid] -= 1
            self._count(-1)
        answer = b"done"
        if self._slow:
            self._slow -= 1
            answer = b"slow"
        writer.write(answer)

    def _count(self, change: int) -> None:
        self.now += change
        self.most = max(self.most, self.now)
