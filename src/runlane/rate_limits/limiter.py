"""Limits for model calls, held by the whole cluster: in flight, requests and tokens per minute, one shared back-off.

A call enters before it is made and leaves when it has ended. Waiters of one process stand in one line per credential
and only the first of them asks the desk, so their order is kept and waiting costs the same for one or a thousand. For
a credential without limits nobody is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, Self

from runlane.domain.ids import new_id
from runlane.domain.rate_limit import (
    CredentialLoad,
    LimitKind,
    LimitRefusal,
    ProviderLimits,
    counted_tokens,
    describe_refusal,
)
from runlane.errors import Unavailable
from runlane.rate_limits.backend import ASK_SECONDS, BackendStateLost, BackendUnavailable, HeldSlot
from runlane.rate_limits.coordinator import LimitCoordinator
from runlane.settings import Settings
from runlane.store.rate_limits.limits import recover, slow_down
from runlane.store.rate_limits.slots import SlotRequest
from runlane.store.sql.database import Database

if TYPE_CHECKING:
    from runlane.rate_limits.redis import RedisBackend

Waiting = Callable[[str], Awaitable[None]]

# When a slot becomes free is unknown; come back soon, but not all at once.
_LATER_SECONDS: Final = (1.0, 3.0)
_AWAY_SECONDS: Final = 0.2
# Whoever has no patience at all is still told whether there is room.
_ANSWER_SECONDS: Final = 2.0


class LimitTimeout(Exception):
    """There was no room within one's patience: give the worker's slot back and come again after so many seconds."""

    def __init__(self, reason: str, retry_in_seconds: float) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_in_seconds = retry_in_seconds


class CallSlot(Protocol):
    """Permission for one call. Leave it when the call has ended, or use it with `async with`."""

    tokens_used: int | None

    async def leave(self, tokens_used: int | None = None, *, succeeded: bool = True) -> None:
        """Give it back with what the call really took; None keeps the estimate. Never raises; twice is harmless."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None: ...


class Limiter(Protocol):
    """Lets calls begin when there is room for them."""

    async def enter(self, credential: str, *, tokens: int, patience_seconds: float, waiting: Waiting) -> CallSlot:
        """A slot for one call of about so many tokens.

        `waiting` is called once, with the reason, when the call has to wait. MustWait when it would take longer than
        patience_seconds.
        """
        ...

    async def slow_down(self, credential: str, seconds: float | None, reason: str) -> None:
        """The provider asks us to slow down, for so many seconds if it says so: everybody on the credential does."""
        ...


class _Slot:
    def __init__(self, limiter: ClusterLimiter, credential: str, held: HeldSlot | None) -> None:
        self._limiter = limiter
        self._credential = credential
        self._held = held
        self._entered = time.monotonic()
        self._left = False
        self.tokens_used: int | None = None

    async def leave(self, tokens_used: int | None = None, *, succeeded: bool = True) -> None:
        if self._left:
            return
        self._left = True
        taken = self.tokens_used if tokens_used is None else tokens_used
        # Whoever is cancelled still leaves.
        await asyncio.shield(self._limiter.left(self._credential, self._held, self._entered, taken, succeeded))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await self.leave(succeeded=kind is None)


class _Waiter:
    def __init__(self, credential: str, holder: str, tokens: int, patience_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._ask = SlotRequest(credential, new_id("slot"), holder, max(0, tokens), 0.0)
        self._arrived = time.monotonic()
        self._give_up_at = self._arrived + patience_seconds
        self.granted: asyncio.Future[_Slot] = loop.create_future()
        self.refused: asyncio.Future[str] = loop.create_future()

    @property
    def left_seconds(self) -> float:
        return self._give_up_at - time.monotonic()

    @property
    def ask(self) -> SlotRequest:
        # The first question of all is asked without having waited.
        waited = time.monotonic() - self._arrived if self.refused.done() else 0.0
        ask = self._ask
        return SlotRequest(ask.credential, ask.lease_id, ask.holder, ask.tokens, waited)


class ClusterLimiter:
    """The limiter of a process. Use it in one event loop; close() gives everything back."""

    def __init__(self, database: Database, redis: RedisBackend | None = None) -> None:
        self._database = database
        self._redis = redis
        self._holder = new_id("lim") if redis is None else redis.holder
        self._board = LimitCoordinator(database, self._redis)
        self._lines: dict[str, deque[_Waiter]] = {}
        self._drivers: dict[str, asyncio.Task[None]] = {}
        # Why the first of a line waits, while it does.
        self._reasons: dict[str, str] = {}
        self._leaving: set[asyncio.Future[None]] = set()

    @property
    def board(self) -> LimitCoordinator:
        """What this process knows, for tests and tools."""
        return self._board

    async def enter(self, credential: str, *, tokens: int, patience_seconds: float, waiting: Waiting) -> CallSlot:
        if not credential:
            return _Slot(self, credential, None)
        with contextlib.suppress(Unavailable):
            await self._board.fresh()
            if not self._board.limits(credential) and self._board.slow(credential)[0] <= 0:
                return _Slot(self, credential, None)
        waiter = _Waiter(credential, self._holder, tokens, patience_seconds)
        self._join(credential, waiter)
        try:
            return await self._stand(waiter, waiting)
        except BaseException:
            self._abandon(waiter)
            raise

    async def slow_down(self, credential: str, seconds: float | None, reason: str) -> None:
        if not credential:
            return
        asked = None if seconds is None or not math.isfinite(seconds) else max(0.0, seconds)
        jitter = random.random()  # noqa: S311 - spreads, guards nothing
        try:
            left = await slow_down(self._database, credential, asked, reason, jitter)
        except Unavailable:
            # Nobody else can be told, but this process need not go on asking.
            self._board.report_slowdown(credential, asked or 1.0, reason)
            return
        self._board.report_slowdown(credential, left, reason)
        if self._redis is not None and self._board.desk is self._redis and self._board.limits(credential):
            # Everybody reads it within a second anyway.
            with contextlib.suppress(BackendUnavailable, BackendStateLost):
                await self._redis.slow_down(credential, left, reason)

    async def close(self) -> None:
        """Give back what is held and let go of Redis. Safe to call twice."""
        for driver in self._drivers.values():
            driver.cancel()
        await asyncio.gather(*self._drivers.values(), return_exceptions=True)
        self._drivers.clear()
        for waiter in (waiter for line in self._lines.values() for waiter in line):
            if not waiter.granted.done():
                waiter.granted.set_exception(LimitTimeout("this process stops", 0.0))
                waiter.granted.exception()
        await self._board.close()
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=2)
        await asyncio.gather(*(self._board.leave(held, 0) for held in list(self._board.held.values())))
        if self._redis is not None:
            await self._redis.close()

    def left(
        self, credential: str, held: HeldSlot | None, entered: float, tokens_used: int | None, succeeded: bool
    ) -> asyncio.Future[None]:
        """A call has ended."""
        task = asyncio.ensure_future(self._left(credential, held, entered, tokens_used, succeeded))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    async def _left(
        self, credential: str, held: HeldSlot | None, entered: float, tokens_used: int | None, succeeded: bool
    ) -> None:
        if held is not None:
            await self._board.leave(held, 0 if tokens_used is None else tokens_used - held.tokens)
        if succeeded and self._board.streak_before(credential, entered):
            with contextlib.suppress(Unavailable):
                await recover(self._database, credential, time.monotonic() - entered)

    # --- the line of a credential

    def _join(self, credential: str, waiter: _Waiter) -> None:
        line = self._lines.setdefault(credential, deque())
        if credential in self._reasons and not all(other.granted.done() for other in line):
            waiter.refused.set_result(self._reasons[credential])
        line.append(waiter)
        driver = self._drivers.get(credential)
        if driver is None or driver.done():
            self._drivers[credential] = asyncio.create_task(
                self._drive(credential, line), name=f"runlane-limits-{credential}"
            )

    async def _stand(self, waiter: _Waiter, waiting: Waiting) -> CallSlot:
        """Wait for the driver's word, at most as long as the waiter's patience."""
        first = max(waiter.left_seconds, _ANSWER_SECONDS)
        await asyncio.wait({waiter.granted, waiter.refused}, timeout=first, return_when=asyncio.FIRST_COMPLETED)
        if not waiter.granted.done() and waiter.refused.done():
            await waiting(waiter.refused.result())
            await asyncio.wait({waiter.granted}, timeout=max(0.0, waiter.left_seconds))
        if not waiter.granted.done():
            reason = waiter.refused.result() if waiter.refused.done() else "nobody could be asked for room in time"
            raise LimitTimeout(reason, random.uniform(*_LATER_SECONDS))  # noqa: S311 - spreads, guards nothing
        return waiter.granted.result()

    def _abandon(self, waiter: _Waiter) -> None:
        if waiter.granted.cancel() or waiter.granted.cancelled() or waiter.granted.exception() is not None:
            return
        # It was granted in the moment in which its caller went away.
        slot = waiter.granted.result()
        task = asyncio.ensure_future(slot.leave(0, succeeded=False))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _drive(self, credential: str, line: deque[_Waiter]) -> None:
        """Ask for the first of the line until nobody is left in it."""
        told_waiting = False
        try:
            while line:
                head = line[0]
                if head.granted.done():
                    line.popleft()
                    continue
                epoch = self._board.epoch
                try:
                    refusal, by_desk = await self._try(credential, head)
                    if refusal is None:
                        line.popleft()
                        self._reasons.pop(credential, None)
                        continue
                    told_waiting = told_waiting or by_desk
                    self._reasons[credential] = refusal.reason
                    if self._handle_refusal(line, refusal):
                        line.popleft()
                        continue
                    await self._pause(head, refusal, by_desk)
                except (BackendUnavailable, BackendStateLost) as error:
                    with contextlib.suppress(Unavailable):
                        await self._board.move_away(epoch, error)
                    await asyncio.sleep(_AWAY_SECONDS / 4)
        except Exception as error:
            # Nobody must wait for a driver that is gone.
            for waiter in line:
                if not waiter.granted.done():
                    waiter.granted.set_exception(error)
            line.clear()
            raise
        finally:
            self._reasons.pop(credential, None)
            if told_waiting:
                task = asyncio.ensure_future(self._withdraw(credential))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    async def _withdraw(self, credential: str) -> None:
        with contextlib.suppress(BackendUnavailable, BackendStateLost):
            await self._board.desk.withdraw(credential, self._holder)

    async def _try(self, credential: str, head: _Waiter) -> tuple[LimitRefusal | None, bool]:
        """Grant the first waiter its slot, or say why not, and whether the desk said so."""
        board = self._board
        try:
            await board.fresh()
        except Unavailable:
            return LimitRefusal(f"{credential}: the database does not answer"), False
        limits = board.limits(credential)
        slow_seconds, why = board.slow(credential)
        if slow_seconds > 0:
            load = CredentialLoad(slow_seconds=slow_seconds, slow_reason=why)
            return describe_refusal(credential, limits, load, LimitKind.SLOW, head.ask.tokens, None), False
        if not limits:
            self._grant(head, _Slot(self, credential, None))
            return None, False
        if board.settling_seconds > 0:
            seconds = math.ceil(board.settling_seconds)
            return LimitRefusal(f"{credential}: counting begins anew, {seconds} s more"), False
        return await self._take(credential, limits, head), True

    async def _take(self, credential: str, limits: ProviderLimits, head: _Waiter) -> LimitRefusal | None:
        board, ask, epoch = self._board, head.ask, self._board.epoch
        with contextlib.suppress(Unavailable):
            await board.introduce(credential)
        entered = time.monotonic()
        answer = await board.desk.take(ask, limits)
        if isinstance(answer, LimitRefusal):
            return answer
        held = HeldSlot(ask.lease_id, credential, counted_tokens(limits, ask.tokens), entered, epoch, answer.second)
        if board.epoch != epoch:
            # The desk that granted it counts no longer, and the one that does has not been asked.
            return LimitRefusal(f"{credential}: counting begins anew")
        board.count(held)
        self._grant(head, _Slot(self, credential, held))
        return None

    def _grant(self, waiter: _Waiter, slot: _Slot) -> None:
        if not waiter.granted.done():
            waiter.granted.set_result(slot)
            return
        task = asyncio.ensure_future(slot.leave(0, succeeded=False))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _handle_refusal(self, line: deque[_Waiter], refusal: LimitRefusal) -> bool:
        """Tell everybody in the line why they wait; True when the first of them need not even try to."""
        head = line[0]
        firm = refusal.firm_seconds
        if firm is not None and firm > head.left_seconds and not head.granted.done():
            head.granted.set_exception(LimitTimeout(refusal.reason, firm))
            # A caller that was cancelled does not look at it.
            head.granted.exception()
            return True
        for waiter in line:
            if not waiter.refused.done():
                waiter.refused.set_result(refusal.reason)
        return False

    async def _pause(self, head: _Waiter, refusal: LimitRefusal, by_desk: bool) -> None:
        seconds = min(ASK_SECONDS, max(0.01, head.left_seconds), max(0.01, refusal.firm_seconds or ASK_SECONDS))
        if by_desk:
            await self._board.desk.wait(head.ask, seconds)
        else:
            await asyncio.sleep(min(seconds, _AWAY_SECONDS))


def make_limiter(settings: Settings, database: Database) -> ClusterLimiter:
    """The limiter that the settings ask for: over Redis when its URL is set, and over the database always."""
    if settings.redis_url is None:
        return ClusterLimiter(database)
    from runlane.bus.redis_client import open_client
    from runlane.rate_limits.redis import RedisBackend

    client = open_client(settings.redis_url.get_secret_value())
    return ClusterLimiter(database, RedisBackend(client, settings.redis_prefix))


class _Free:
    tokens_used: int | None = None

    async def leave(self, tokens_used: int | None = None, *, succeeded: bool = True) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None: ...


class NoLimits:
    """Everybody may call at once: for tests of single steps."""

    async def enter(self, credential: str, *, tokens: int, patience_seconds: float, waiting: Waiting) -> CallSlot:
        """At once."""
        return _Free()

    async def slow_down(self, credential: str, seconds: float | None, reason: str) -> None:
        """Nobody listens."""
