"""The lease of a node: renewed in the background; it ends before another node may take a memory.

Its end is counted from the time at which a renewal was sent, on a clock that does not stop while the process is frozen.
A failed renewal does not count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from runlane.errors import Unavailable
from runlane.observability.outage import outage

# This clock continues while the host is suspended. On systems other than Linux, CLOCK_MONOTONIC does so itself.
_STEADY: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_SHARE_KEPT_BACK: Final = 0.1
_LONGEST_WAIT_SECONDS: Final = 20.0


class NodeLease:
    """How long this process may write to the memories that it owns.

    `lapsed` is called when the lease is renewed after its end: other nodes may have taken the memories meanwhile.
    """

    def __init__(
        self, seconds: float, renew: Callable[[], Awaitable[None]], lapsed: Callable[[], None] | None = None
    ) -> None:
        self.seconds = seconds
        self._renew = renew
        self._lapsed = lapsed
        self._ends_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    @property
    def seconds_left(self) -> float:
        """The remaining seconds of the lease; negative after its end."""
        return self._ends_at - time.clock_gettime(_STEADY)

    async def renew(self) -> None:
        """Renew the lease now. Raise Unavailable if the database is unavailable."""
        sent_at = time.clock_gettime(_STEADY)
        await self._renew()
        if self.seconds_left <= 0 and self._lapsed is not None:
            self._lapsed()
        self._ends_at = sent_at + self.seconds * (1 - _SHARE_KEPT_BACK)

    def check(self) -> None:
        """Raise Unavailable after the end of the lease."""
        if self.seconds_left <= 0:
            raise Unavailable(
                f"The lease of this memory node has expired: the database was unavailable for more than "
                f"{self.seconds:g} s, so another node may own its memories."
            )

    def start(self) -> None:
        """Begin to renew."""
        self._task = asyncio.create_task(self._keep(), name="memory-lease")

    async def stop(self) -> None:
        """Stop renewing. Safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _keep(self) -> None:
        pause = min(self.seconds / 4, _LONGEST_WAIT_SECONDS)
        while True:
            await asyncio.sleep(pause)
            try:
                await self.renew()
            except Unavailable as error:
                # If this continues, the lease ends and changes are rejected, so nothing else has to be done here.
                outage.failed("memory_lease", str(error))
