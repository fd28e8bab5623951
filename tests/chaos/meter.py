"""A provider that does nothing but count the calls in flight, by itself and independent of what is under test."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Self


class Meter:
    """Answers each call after `seconds`, with "done" or, when told to, with "slow"."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.port = 0
        self.now = self.most = self.calls = 0
        self.by_pid: Counter[int] = Counter()
        self.begun_at: list[float] = []
        self._slow = 0
        self._area = 0.0
        self._changed_at = self._since = time.monotonic()
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
        self._area, self.most = 0.0, self.now
        self._changed_at = self._since = time.monotonic()

    def share(self, limit: int) -> float:
        """How much of the limit was used since then, over time."""
        self._count(0)
        return self._area / (limit * (time.monotonic() - self._since))

    def slow_next(self) -> None:
        """Answer the next call that ends with "slow"."""
        self._slow += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid = int(await reader.readline() or b"0")
        self.calls += 1
        self.begun_at.append(time.monotonic())
        self.by_pid[pid] += 1
        self._count(1)
        try:
            async with asyncio.timeout(self.seconds):
                # Nothing more is ever sent: this ends early only when the caller is gone.
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
        writer.close()

    def _count(self, change: int) -> None:
        now = time.monotonic()
        self._area += self.now * (now - self._changed_at)
        self._changed_at = now
        self.now += change
        self.most = max(self.most, self.now)


class Slowness:
    """How many times slower than an idle machine this one is at the moment: 1 if nothing else needs it.

    Now and then a little computation is due at a fixed time. What counts is the time from then until it is done,
    compared with the processor time that it took: late wake-ups and shared processors both show.
    """

    _EVERY_SECONDS = 0.2
    _SPIN_SECONDS = 0.01

    def __init__(self) -> None:
        self._waited = self._used = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        self._task.cancel()

    @property
    def factor(self) -> float:
        return max(1.0, self._waited / self._used) if self._used else 1.0

    async def _sample(self) -> None:
        while True:
            due = time.monotonic() + self._EVERY_SECONDS
            await asyncio.sleep(self._EVERY_SECONDS)
            used = time.thread_time()
            while time.thread_time() - used < self._SPIN_SECONDS:
                pass
            self._used += time.thread_time() - used
            self._waited += time.monotonic() - due


async def well_used(measure: Callable[[], Awaitable[float]]) -> bool:
    """Whether nine tenths of a limit are used, in one of three whiles.

    The rest is the time between two calls. On a machine that others use, that time may be longer by as much as
    everything else is.
    """
    for _ in range(3):
        async with Slowness() as machine:
            used = await measure()
        needed = 1 / (1 + machine.factor / 9)
        print(f"needed {needed:.3f}: the machine is {machine.factor:.1f} times slower than an idle one")
        if used >= needed:
            return True
    return False
