"""The slots that this process holds: taken in batches, renewed together, released together.

A process waits for room by polling, because not every way to reach a database delivers notifications. It polls without
a lock and requests slots when there may be room, or when its wait has to be stored again. Only the process that is next
polls often, so that a free slot is taken soon and many waiting processes cost little.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from runlane.domain.rate_limit import LimitRefusal
from runlane.errors import Unavailable
from runlane.store.rate_limits.slots import (
    SlotRelease,
    SlotRequest,
    look_for_room,
    release_slots,
    renew_slots,
    take_slots,
    withdraw,
)
from runlane.store.sql.database import Database

# A lease that was not renewed for this long belongs to a dead worker. All leases of a process are renewed together.
LEASE_SECONDS: Final = 12.0
RENEW_SECONDS: Final = 3.0
_RETRY_RENEWAL_SECONDS: Final = 0.5
# A waiting process stores that it waits at least this often; it loses its turn when its entry is older than that.
ASK_SECONDS: Final = 0.5
STALE_SECONDS: Final = 2.0
_NEXT_POLL_SECONDS: Final = (0.01, 0.03)
_POLL_SECONDS: Final = (0.05, 0.1)


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """A slot that this process holds. `second` is the second of the database's clock in which its call counts."""

    id: str
    credential: str
    tokens: int
    second: int


class HeldSlots:
    """One per process. `held` are the slots that it holds, by id."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._released = asyncio.Event()
        self._releases: list[SlotRelease] = []
        self._writing = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None
        self.held: dict[str, HeldSlot] = {}

    async def take(self, request: SlotRequest) -> Sequence[HeldSlot] | LimitRefusal:
        """Return slots for the first calls of the request, at least one, or the reason why there are none."""
        answer = await take_slots(self._database, request, lease_seconds=LEASE_SECONDS, stale_seconds=STALE_SECONDS)
        if isinstance(answer, LimitRefusal):
            return answer
        slots = [
            HeldSlot(lease_id, request.credential, tokens, answer.second)
            for (lease_id, _), tokens in zip(request.calls, answer.tokens, strict=False)
        ]
        self.held.update((slot.id, slot) for slot in slots)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew_loop(), name="runlane-limits-renew")
        return slots

    async def wait_for_room(self, request: SlotRequest, seconds: float) -> None:
        """Return when there may be room, or when it is time to store the wait again."""
        began = time.monotonic()
        until = began + min(seconds, ASK_SECONDS)
        poll = _NEXT_POLL_SECONDS
        while (left := until - time.monotonic()) > 0:
            self._released.clear()
            pause = random.uniform(*poll)  # noqa: S311 - jitter
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, pause)):
                    await self._released.wait()
            waited = request.waited_seconds + time.monotonic() - began
            room, ahead = await look_for_room(
                self._database, replace(request, waited_seconds=waited), stale_seconds=STALE_SECONDS
            )
            if room:
                return
            poll = _POLL_SECONDS if ahead else _NEXT_POLL_SECONDS

    async def renew(self) -> None:
        """Renew every slot that is held."""
        async with self._writing:
            leases = [(slot.id, slot.credential) for slot in self.held.values()]
            await renew_slots(self._database, leases, LEASE_SECONDS)

    async def release(self, slot: HeldSlot, more_tokens: int) -> None:
        """Release a slot, together with other slots in one transaction. If that fails, its lease expires."""
        self.held.pop(slot.id, None)
        self._releases.append(SlotRelease(slot.id, slot.credential, slot.second, more_tokens))
        # No release during a renewal, which would store the lease of the released slot again.
        async with self._writing:
            releases, self._releases = self._releases, []
            if releases:
                with contextlib.suppress(Unavailable):
                    await release_slots(self._database, releases)
        self._released.set()

    async def withdraw(self, credential: str, holder: str) -> None:
        """Store that this process no longer waits. If that fails, its entry becomes stale."""
        with contextlib.suppress(Unavailable):
            await withdraw(self._database, credential, holder)

    async def stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])

    async def close(self) -> None:
        """Release everything."""
        await self.stop_renewing()
        await asyncio.gather(*(self.release(slot, 0) for slot in list(self.held.values())))

    async def _renew_loop(self) -> None:
        """Renew the held slots until none is left. Policy for errors: retry soon."""
        pause = RENEW_SECONDS
        while self.held:
            await asyncio.sleep(pause)
            try:
                await self.renew()
                pause = RENEW_SECONDS
            except Unavailable:
                pause = _RETRY_RENEWAL_SECONDS
