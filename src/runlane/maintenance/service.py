"""The loop of a maintenance service: one job, repeated with jitter.

Policy for errors: every process runs the service, so a failure is logged and the next pass retries.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

from runlane.errors import Unavailable
from runlane.observability.outage import outage

log = structlog.get_logger(__name__)


class PeriodicService:
    """start() and stop() may be called in any order and more than once."""

    def __init__(self, name: str, seconds: float, job: Callable[[], Awaitable[bool]]) -> None:
        """`job` returns True when there is more to do at once."""
        self.name = name
        self._seconds = seconds
        self._job = job
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Start within one interval, at a random moment, so that processes started together do not stay in step."""
        if self._task is None:
            self._stopping.clear()
            self._task = asyncio.create_task(self._loop(), name=f"runlane-{self.name}")

    async def stop(self) -> None:
        """Stop after the current pass."""
        self._stopping.set()
        task, self._task = self._task, None
        if task is not None:
            await task

    async def _loop(self) -> None:
        pause = self._seconds * random.random()  # noqa: S311 - jitter
        while not await self._stopped_within(pause):
            pause = self._seconds * (0.9 + 0.2 * random.random())  # noqa: S311
            try:
                more = await self._job()
                pause = 0.0 if more else pause
                outage.succeeded()
            except Unavailable as error:
                outage.failed(self.name, str(error))
            except Exception:
                log.exception("maintenance_failed", service=self.name)

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True
