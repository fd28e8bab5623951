"""The loop of a maintenance service: one job, repeated with jitter.

Policy for errors: every process runs the service, so a failure is logged and the next pass retries.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import structlog

from runlane.errors import Unavailable
from runlane.observability.outage import outage

log = structlog.get_logger(__name__)


class PeriodicService:
    """start() and stop() may be called in any order and more than once."""

    def __init__(self, name: str, seconds: float | Callable[[], float], job: Callable[[], Awaitable[bool]]) -> None:
        """`seconds` is the interval, or returns it. `job` returns True when there is more to do at once."""
        self.name = name
        self._seconds = seconds
        self._job = job
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._woken = asyncio.Event()

    def start(self) -> None:
        """Start within one interval, at a random moment, so that processes started together do not stay in step."""
        if self._task is None:
            self._stopping = False
            self._task = asyncio.create_task(self._loop(), name=f"runlane-{self.name}")

    async def stop(self) -> None:
        """Stop after the current pass."""
        self._stopping = True
        self._woken.set()
        task, self._task = self._task, None
        if task is not None:
            await task

    def wake(self) -> None:
        """Run the job at once, and once more if it is running."""
        self._woken.set()

    async def _loop(self) -> None:
        pause = self._interval() * random.random()  # noqa: S311 - jitter
        while not await self._stopped_within(pause):
            pause = self._interval() * (0.9 + 0.2 * random.random())  # noqa: S311
            try:
                more = await self._job()
                pause = 0.0 if more else pause
                outage.succeeded()
            except Unavailable as error:
                outage.failed(self.name, str(error))
            except Exception:
                log.exception("maintenance_failed", service=self.name)

    def _interval(self) -> float:
        return self._seconds if isinstance(self._seconds, float | int) else self._seconds()

    async def _stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        if not self._stopping:
            self._woken.clear()
        return self._stopping
