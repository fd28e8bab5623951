"""The desk over the database: correct by itself, and the one that takes over when Redis is away.

Waiting is polling, because a database has no bells that every way of reaching it lets through: looks without a lock,
and a real question when there may be room or when the wait has to be told again. Only the process that comes next looks
often, so that a free slot is seen soon and many who wait do not cost more.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from runlane.domain.rate_limit import LimitRefusal, ProviderLimits
from runlane.errors import Unavailable
from runlane.rate_limits.backend import (
    ASK_SECONDS,
    LEASE_SECONDS,
    STALE_SECONDS,
    BackendUnavailable,
    HeldSlot,
    UsedSecond,
)
from runlane.store.rate_limits.slots import (
    CredentialInUse,
    SlotGrant,
    SlotRequest,
    add_use,
    give_back,
    lease_slots,
    look_for_room,
    read_busy,
    take_slot,
    withdraw,
)
from runlane.store.sql.database import Database

NEXT_POLL_SECONDS = (0.01, 0.03)
POLL_SECONDS = (0.05, 0.1)


class DatabaseBackend:
    """Counts in tables, under a lock per credential. It reads the limits itself, so that a change holds at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._released = asyncio.Event()

    async def take(self, ask: SlotRequest, limits: ProviderLimits) -> SlotGrant | LimitRefusal:
        try:
            return await take_slot(self._database, ask, lease_seconds=LEASE_SECONDS, stale_seconds=STALE_SECONDS)
        except Unavailable as error:
            raise BackendUnavailable(str(error)) from error

    async def wait(self, ask: SlotRequest, seconds: float) -> None:
        began = time.monotonic()
        until = began + min(seconds, ASK_SECONDS)
        poll = NEXT_POLL_SECONDS
        while (left := until - time.monotonic()) > 0:
            self._released.clear()
            pause = random.uniform(*poll)  # noqa: S311 - spreads, guards nothing
            try:
                async with asyncio.timeout(min(left, pause)):
                    await self._released.wait()
            except TimeoutError:
                pass
            asked = replace(ask, waited_seconds=ask.waited_seconds + time.monotonic() - began)
            try:
                room, ahead = await look_for_room(self._database, asked, stale_seconds=STALE_SECONDS)
            except Unavailable as error:
                raise BackendUnavailable(str(error)) from error
            if room:
                return
            poll = POLL_SECONDS if ahead else NEXT_POLL_SECONDS

    async def hold(self, held: Sequence[HeldSlot], used: Sequence[UsedSecond] = ()) -> None:
        try:
            await lease_slots(self._database, [(slot.id, slot.credential) for slot in held], LEASE_SECONDS)
            if used:
                told = [(use.credential, use.seconds_ago, use.requests, use.tokens) for use in used]
                await add_use(self._database, told)
        except Unavailable as error:
            raise BackendUnavailable(str(error)) from error

    async def leave(self, held: HeldSlot, limits: ProviderLimits, second: int | None, more_tokens: int) -> None:
        try:
            await give_back(self._database, held.credential, [held.id], second, more_tokens)
        except Unavailable as error:
            raise BackendUnavailable(str(error)) from error
        self._released.set()

    async def withdraw(self, credential: str, holder: str) -> None:
        try:
            await withdraw(self._database, credential, holder)
        except Unavailable as error:
            raise BackendUnavailable(str(error)) from error

    async def busy(self, credentials: Sequence[str]) -> Mapping[str, CredentialInUse]:
        found = await read_busy(self._database, STALE_SECONDS)
        return {name: found.get(name, CredentialInUse()) for name in credentials}
