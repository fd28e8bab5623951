"""The loop of a maintenance service: one job, repeated with jitter.

Every process has every service, and also searches for work periodically, without a wake-up. Many processes take turns
at these passes, so that their number does not multiply them.

Policy for errors: every process runs the service, so a failure is logged and the next pass retries.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from runlane.errors import Unavailable
from runlane.observability.outage import outage

log = structlog.get_logger(__name__)

# Passes at shorter intervals are for work that this process has itself, or that must not wait for a turn.
SHARED_FROM_SECONDS: Final = 10.0
# Up to this many processes make a pass in every interval; more of them take turns.
_PROCESSES_AT_ONCE: Final = 4


class Turns:
    """Decides in which intervals this process makes a pass, among several processes that take turns."""

    def __init__(self, count_processes: Callable[[], int]) -> None:
        self._count_processes = count_processes
        self._skipped: int | None = None

    def take(self) -> bool:
        """Return whether this interval is the turn of this process."""
        skips = self._count_processes() // _PROCESSES_AT_ONCE
        if self._skipped is None:
            # Processes that were started together begin at different turns.
            self._skipped = random.randint(0, skips)  # noqa: S311 - spreads load, not for security
        if self._skipped < skips:
            self._skipped += 1
            return False
        self._skipped = 0
        return True


def _alone() -> int:
    return 1


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
        self._turns = Turns(_alone)

    def share(self, count_processes: Callable[[], int]) -> None:
        """Take turns with other processes at passes without a wake-up.

        The number of processes may change at any time.
        """
        self._turns = Turns(count_processes)

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
        interval = self._interval()
        pause = interval * random.random()  # noqa: S311 - jitter
        while True:
            woken = await self._woken_within(pause)
            if self._stopping:
                return
            runs_now = woken or interval < SHARED_FROM_SECONDS or self._turns.take()
            interval = self._interval()
            pause = interval * (0.9 + 0.2 * random.random())  # noqa: S311
            if runs_now and await self._run_job():
                interval = pause = 0.0

    async def _run_job(self) -> bool:
        """Return whether there is more to do at once."""
        try:
            more = await self._job()
            outage.succeeded()
        except Unavailable as error:
            outage.failed(self.name, str(error))
        except Exception:
            log.exception("maintenance_failed", service=self.name)
        else:
            return more
        return False

    def _interval(self) -> float:
        return self._seconds if isinstance(self._seconds, float | int) else self._seconds()

    async def _woken_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        woken = self._woken.is_set()
        self._woken.clear()
        return woken
