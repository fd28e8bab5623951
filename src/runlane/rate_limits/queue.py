"""The calls of one process that wait for one credential.

One task per credential requests slots for the oldest calls, so their order is kept, and the cost does not depend on the
number of waiting calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any, Final

from runlane.domain.ids import new_id
from runlane.domain.rate_limit import CredentialLoad, LimitKind, LimitRefusal, describe_refusal
from runlane.errors import Unavailable
from runlane.rate_limits.slots import ASK_SECONDS, HeldSlot, HeldSlots
from runlane.rate_limits.state import LimitState
from runlane.store.rate_limits.slots import SlotRequest

# Slots that are requested in one transaction.
_MAX_BATCH: Final = 100
_RETRY_SECONDS: Final = 0.2


class LimitTimeout(Exception):
    """The limit was not available within the timeout. Release the worker slot and retry after `retry_in_seconds`."""

    def __init__(self, reason: str, retry_in_seconds: float) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_in_seconds = retry_in_seconds


class WaitingCall:
    """A call that has not begun. `granted` is None for a credential without limits; `refused` is why it waits."""

    def __init__(self, tokens: int, timeout_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._arrived = time.monotonic()
        self._deadline = self._arrived + timeout_seconds
        self.lease_id = new_id("slot")
        self.tokens = max(0, tokens)
        self.granted: asyncio.Future[HeldSlot | None] = loop.create_future()
        self.refused: asyncio.Future[str] = loop.create_future()

    @property
    def left_seconds(self) -> float:
        return self._deadline - time.monotonic()

    @property
    def waited_seconds(self) -> float:
        # A call that was not refused yet has not waited.
        return time.monotonic() - self._arrived if self.refused.done() else 0.0

    def fail(self, error: Exception) -> None:
        if not self.granted.done():
            self.granted.set_exception(error)
            # Retrieved here, because a caller that was cancelled does not retrieve the exception.
            self.granted.exception()


class CredentialQueue:
    """`reason` is why the first call waits, if it waits. `spawn` runs what must complete even if its caller is gone."""

    def __init__(
        self,
        credential: str,
        holder: str,
        state: LimitState,
        slots: HeldSlots,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Future[None]],
    ) -> None:
        self._credential = credential
        self._holder = holder
        self._state = state
        self._slots = slots
        self._spawn = spawn
        self._driver: asyncio.Task[None] | None = None
        self.calls: deque[WaitingCall] = deque()
        self.reason: str | None = None

    def join(self, call: WaitingCall) -> None:
        if self.reason is not None and not all(earlier.granted.done() for earlier in self.calls):
            call.refused.set_result(self.reason)
        self.calls.append(call)
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive(), name=f"runlane-limits-{self._credential}")

    def abandon(self, call: WaitingCall) -> None:
        """Remove a call whose caller is gone; it may have been granted in that moment."""
        if call.granted.cancel() or call.granted.cancelled() or call.granted.exception() is not None:
            return
        self._release(call.granted.result())

    async def close(self) -> None:
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.wait([self._driver])
        for call in self.calls:
            call.fail(LimitTimeout("this process stops", 0.0))

    async def _drive(self) -> None:
        """Request slots for the first calls until none is left."""
        stored = False
        try:
            while call := self._first():
                refusal, by_store = await self._request_slots()
                self.reason = None if refusal is None else refusal.reason
                stored = stored or (by_store and refusal is not None)
                if refusal is not None and self._may_wait(call, refusal):
                    await self._pause(call, refusal, by_store)
        except Exception as error:
            # When this task has failed, the calls would wait until their timeout.
            for call in self.calls:
                call.fail(error)
            self.calls.clear()
            raise
        finally:
            self.reason = None
            if stored:
                self._spawn(self._slots.withdraw(self._credential, self._holder))

    def _first(self) -> WaitingCall | None:
        while self.calls and self.calls[0].granted.done():
            self.calls.popleft()
        return self.calls[0] if self.calls else None

    async def _request_slots(self) -> tuple[LimitRefusal | None, bool]:
        """Grant the first calls, or return the reason against it; also return whether the store has decided."""
        try:
            await self._state.ensure_fresh()
            limits = self._state.limits(self._credential)
            slow_seconds, reason = self._state.slow(self._credential)
            calls = self._pending()
            if slow_seconds > 0 and calls:
                load = CredentialLoad(slow_seconds=slow_seconds, slow_reason=reason)
                return describe_refusal(self._credential, limits, load, LimitKind.SLOW, calls[0].tokens, None), False
            if limits and calls:
                await self._state.list_credential(self._credential)
                return await self._take(calls), True
        except Unavailable:
            return LimitRefusal(f"{self._credential}: the database does not answer"), False
        for call in calls:
            call.granted.set_result(None)
        return None, False

    async def _take(self, calls: list[WaitingCall]) -> LimitRefusal | None:
        answer = await self._slots.take(self._request(calls))
        if isinstance(answer, LimitRefusal):
            return answer
        for call, slot in zip(calls, answer, strict=False):
            if call.granted.done():
                self._release(slot)
            else:
                call.granted.set_result(slot)
        return None

    def _pending(self) -> list[WaitingCall]:
        return list(islice((call for call in self.calls if not call.granted.done()), _MAX_BATCH))

    def _request(self, calls: list[WaitingCall]) -> SlotRequest:
        wanted = [(call.lease_id, call.tokens) for call in calls]
        return SlotRequest(self._credential, self._holder, wanted, calls[0].waited_seconds)

    def _release(self, slot: HeldSlot | None) -> None:
        if slot is not None:
            self._spawn(self._slots.release(slot, -slot.tokens))

    def _may_wait(self, first: WaitingCall, refusal: LimitRefusal) -> bool:
        """Set the reason why the calls wait. If the first call cannot be granted in time, fail it and return False."""
        firm_seconds = refusal.firm_seconds
        if firm_seconds is not None and firm_seconds > first.left_seconds:
            first.fail(LimitTimeout(refusal.reason, firm_seconds))
            return False
        for call in self.calls:
            if not call.refused.done():
                call.refused.set_result(refusal.reason)
        return True

    async def _pause(self, first: WaitingCall, refusal: LimitRefusal, by_store: bool) -> None:
        seconds = min(ASK_SECONDS, max(0.01, first.left_seconds), max(0.01, refusal.firm_seconds or ASK_SECONDS))
        if by_store:
            with contextlib.suppress(Unavailable):
                await self._slots.wait_for_room(self._request([first]), seconds)
                return
        await asyncio.sleep(min(seconds, _RETRY_SECONDS))
