"""Rate limits for model calls, held by the whole cluster: in flight, requests and tokens per minute, shared back-off.

A call acquires a slot before it begins and releases it when it has ended. A credential without limits costs no query.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, Self

from runlane.domain.ids import new_id
from runlane.errors import Unavailable
from runlane.rate_limits.queue import CredentialQueue, LimitTimeout, WaitingCall
from runlane.rate_limits.slots import HeldSlot, HeldSlots
from runlane.rate_limits.state import LimitState
from runlane.store.rate_limits.limits import recover, slow_down
from runlane.store.sql.database import Database

OnWait = Callable[[str], Awaitable[None]]

# The time at which a slot becomes free is unknown: retry soon, but not all calls at once.
_LATER_SECONDS: Final = (1.0, 3.0)
# A call waits at least this long for the store's first response, even if its timeout is shorter.
_ANSWER_SECONDS: Final = 2.0


class CallSlot(Protocol):
    """Permission for one call. Release it when the call has ended, or use it with `async with`."""

    tokens_used: int | None

    async def release(self, tokens_used: int | None = None, *, succeeded: bool = True) -> None:
        """Release the slot with the tokens that the call used; None keeps the estimate. Never raises; idempotent."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None: ...


class Limiter(Protocol):
    """Admits calls when the limits of their credential allow it."""

    async def acquire(self, credential: str, *, tokens: int, timeout_seconds: float, on_wait: OnWait) -> CallSlot:
        """Return a slot for one call of about `tokens` tokens.

        `on_wait` is called once, with the reason, when the call has to wait. Raise LimitTimeout when the wait would
        take longer than timeout_seconds.
        """
        ...

    async def slow_down(self, credential: str, seconds: float | None, reason: str) -> None:
        """Apply the provider's request to slow down to all processes; `seconds` is None if it named no time."""
        ...


class _Slot:
    def __init__(self, limiter: ClusterLimiter, credential: str, held: HeldSlot | None) -> None:
        self._limiter = limiter
        self._credential = credential
        self._held = held
        self._entered = time.monotonic()
        self._released = False
        self.tokens_used: int | None = None

    async def release(self, tokens_used: int | None = None, *, succeeded: bool = True) -> None:
        if self._released:
            return
        self._released = True
        taken = self.tokens_used if tokens_used is None else tokens_used
        # A cancelled call still releases its slot.
        await asyncio.shield(self._limiter.finish(self._credential, self._held, self._entered, taken, succeeded))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await self.release(succeeded=kind is None)


class ClusterLimiter:
    """The limiter of a process. Use it in one event loop; close() releases everything."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._holder = new_id("lim")
        self._background: set[asyncio.Future[None]] = set()
        self.queues: dict[str, CredentialQueue] = {}
        self.state = LimitState(database)
        self.slots = HeldSlots(database)

    async def acquire(self, credential: str, *, tokens: int, timeout_seconds: float, on_wait: OnWait) -> CallSlot:
        if not credential:
            return _Slot(self, credential, None)
        with contextlib.suppress(Unavailable):
            await self.state.ensure_fresh()
            if not self.state.limits(credential) and self.state.slow(credential)[0] <= 0:
                return _Slot(self, credential, None)
        call = WaitingCall(tokens, timeout_seconds)
        queue = self.queues.get(credential)
        if queue is None:
            queue = CredentialQueue(credential, self._holder, self.state, self.slots, self._spawn)
            self.queues[credential] = queue
        queue.join(call)
        try:
            return _Slot(self, credential, await _granted(call, on_wait))
        except BaseException:
            queue.abandon(call)
            raise

    async def slow_down(self, credential: str, seconds: float | None, reason: str) -> None:
        if not credential:
            return
        retry_after = None if seconds is None or not math.isfinite(seconds) else max(0.0, seconds)
        jitter = random.random()  # noqa: S311 - jitter
        try:
            left = await slow_down(self._database, credential, retry_after, reason, jitter)
        except Unavailable:
            # Other processes cannot be informed, but this one slows down.
            left = retry_after or 1.0
        self.state.report_slowdown(credential, left, reason)

    async def close(self) -> None:
        """Release everything that is held. Safe to call twice."""
        await asyncio.gather(*(queue.close() for queue in self.queues.values()))
        await self.state.close()
        if self._background:
            await asyncio.wait(self._background, timeout=2)
        await self.slots.close()

    def finish(
        self, credential: str, held: HeldSlot | None, entered: float, tokens_used: int | None, succeeded: bool
    ) -> asyncio.Future[None]:
        """Account for a call that has ended."""
        return self._spawn(self._finish(credential, held, entered, tokens_used, succeeded))

    async def _finish(
        self, credential: str, held: HeldSlot | None, entered: float, tokens_used: int | None, succeeded: bool
    ) -> None:
        if held is not None:
            await self.slots.release(held, 0 if tokens_used is None else tokens_used - held.tokens)
        if succeeded and self.state.is_first_recovery(credential, entered):
            with contextlib.suppress(Unavailable):
                await recover(self._database, credential, time.monotonic() - entered)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


async def _granted(call: WaitingCall, on_wait: OnWait) -> HeldSlot | None:
    """Wait until the call is granted, at most until its timeout."""
    first = max(call.left_seconds, _ANSWER_SECONDS)
    await asyncio.wait({call.granted, call.refused}, timeout=first, return_when=asyncio.FIRST_COMPLETED)
    if not call.granted.done() and call.refused.done():
        await on_wait(call.refused.result())
        await asyncio.wait({call.granted}, timeout=max(0.0, call.left_seconds))
    if not call.granted.done():
        reason = call.refused.result() if call.refused.done() else "the limits could not be checked in time"
        raise LimitTimeout(reason, random.uniform(*_LATER_SECONDS))  # noqa: S311 - jitter
    return call.granted.result()


class _FreeSlot:
    tokens_used: int | None = None

    async def release(self, tokens_used: int | None = None, *, succeeded: bool = True) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None: ...


class NoLimits:
    """Admits every call at once, for tests of single steps."""

    async def acquire(self, credential: str, *, tokens: int, timeout_seconds: float, on_wait: OnWait) -> CallSlot:
        return _FreeSlot()

    async def slow_down(self, credential: str, seconds: float | None, reason: str) -> None: ...
