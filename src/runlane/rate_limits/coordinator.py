"""The board: what a process knows about limits, and which desk counts for everybody.

The database decides who counts, so that all processes follow: Redis, or the database itself when somebody cannot reach
Redis or Redis has lost its memory. Each move is a new epoch. Whoever learns of it tells the new desk at once what it
holds, and nobody takes anything from the new desk before the slowest of those who knew the old one must have done so.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import structlog

from runlane.domain.rate_limit import WINDOW_SECONDS, ProviderLimits, default_limits
from runlane.errors import Unavailable
from runlane.rate_limits.backend import (
    RENEW_SECONDS,
    BackendStateLost,
    BackendUnavailable,
    HeldSlot,
    LimitBackend,
    UsedSecond,
)
from runlane.rate_limits.database import DatabaseBackend
from runlane.store.rate_limits.limits import (
    FIRST_HOLD_SECONDS,
    BackendState,
    DeskKind,
    LimitSnapshot,
    know,
    move_desk,
    open_desk,
    read_notices,
)
from runlane.store.sql.database import Database

if TYPE_CHECKING:
    # A process without Redis does not load its library.
    from runlane.rate_limits.redis import RedisBackend

log = structlog.get_logger(__name__)

REFRESH_SECONDS: Final = 0.5
# Nothing is taken with older news than that.
FRESH_SECONDS: Final = 1.5
# Longer than that, and the longest that an answer of Redis may take.
SETTLE_SECONDS: Final = 4.0
# Without a call for so long, a process stops reading.
_IDLE_SECONDS: Final = 30.0


class LimitCoordinator:
    """One per process. `held` are the slots that it holds, by id."""

    def __init__(self, database: Database, redis: RedisBackend | None) -> None:
        self._database = database
        self._database_desk = DatabaseBackend(database)
        self._redis = redis
        self._notices = LimitSnapshot({}, {}, BackendState())
        self._read_at = float("-inf")
        self._reading: asyncio.Future[None] | None = None
        self._used_at = 0.0
        self._loops: list[asyncio.Task[None]] = []
        self._known: set[str] = set()
        self._try_redis_at = float("-inf")
        self._recovered: dict[str, float] = {}
        self._own_slow: dict[str, tuple[float, str]] = {}
        self._holding: asyncio.Future[None] | None = None
        self._uses: dict[str, dict[int, list[int]]] = defaultdict(dict)
        self.held: dict[str, HeldSlot] = {}

    # --- what is known

    @property
    def epoch(self) -> int:
        """Which move of the desk this process knows of."""
        return self._notices.desk.epoch

    @property
    def desk(self) -> LimitBackend:
        """Who counts now."""
        if self._redis is not None and self._notices.desk.kind == "redis":
            return self._redis
        return self._database_desk

    @property
    def settling_seconds(self) -> float:
        """How long nothing may be taken yet, because not everybody has told a new desk what they hold."""
        if self.epoch == 0:
            return 0.0
        return SETTLE_SECONDS - self._notices.desk.age_seconds - (time.monotonic() - self._read_at)

    def limits(self, credential: str) -> ProviderLimits:
        """What holds for a credential."""
        found = self._notices.limits.get(credential)
        return default_limits(credential) if found is None else found

    def slow(self, credential: str) -> tuple[float, str]:
        """For how many seconds more everybody on a credential slows down, and why."""
        now = time.monotonic()
        until, reason = self._own_slow.get(credential, (now, ""))
        found = self._notices.slow.get(credential)
        if found is not None and self._read_at + found.left_seconds > until:
            until, reason = self._read_at + found.left_seconds, found.reason
        return max(0.0, until - now), reason

    def streak_before(self, credential: str, entered: float) -> bool:
        """Whether a call that began then is the first good news after a slow-down."""
        found = self._notices.slow.get(credential)
        if found is None or self._recovered.get(credential, float("-inf")) >= self._read_at:
            return False
        if entered <= self._read_at - found.ago_seconds:
            return False
        self._recovered[credential] = time.monotonic()
        return True

    def report_slowdown(self, credential: str, seconds: float, reason: str) -> None:
        """What this process knows before it reads it; a reading that is under way may not know it yet."""
        self._own_slow[credential] = (time.monotonic() + seconds, reason)

    # --- reading

    async def fresh(self) -> None:
        """Return with news that may be acted on. Unavailable when there are none to be had."""
        self._used_at = time.monotonic()
        self._start()
        if time.monotonic() - self._read_at > FRESH_SECONDS:
            await self.refresh()

    async def refresh(self) -> None:
        """Read the news; callers at the same time share one reading."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._refresh())
            # Whoever asked may be gone when it fails.
            self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._reading)

    async def _refresh(self) -> None:
        asked = time.monotonic()
        notices = await read_notices(self._database)
        move = await self._wanted_move(notices.desk)
        if move is not None:
            kind, reason = move
            await self._move(notices.desk.epoch, kind, reason)
            asked = time.monotonic()
            notices = await read_notices(self._database)
        if notices.desk.epoch != self.epoch:
            await self._follow(notices, asked)
        # Counted from before the question: what it tells may be that old.
        self._notices, self._read_at = notices, asked

    async def _wanted_move(self, desk: BackendState) -> tuple[DeskKind, str] | None:
        redis = self._redis
        if redis is None:
            return ("database", "a process has no Redis") if desk.kind == "redis" else None
        if desk.kind == "redis":
            try:
                marked = await redis.marked()
            except BackendUnavailable as error:
                return "database", f"Redis is away: {error}"
            return None if marked is not None and marked >= desk.epoch else ("redis", "Redis has lost its memory")
        if desk.age_seconds < desk.hold_seconds or time.monotonic() < self._try_redis_at:
            return None
        try:
            await redis.marked()
        except BackendUnavailable:
            self._try_redis_at = time.monotonic() + FIRST_HOLD_SECONDS
            return None
        return "redis", "Redis is back" if desk.epoch else "Redis is there"

    async def _move(self, seen_epoch: int, kind: DeskKind, reason: str) -> None:
        if kind == "redis" and self._redis is not None:
            try:
                await self._redis.mark(seen_epoch + 1)
            except BackendUnavailable:
                if seen_epoch == 0:
                    return
                kind, reason = "database", "Redis is away"
        if seen_epoch == 0:
            await open_desk(self._database)
        elif await move_desk(self._database, seen_epoch, kind, reason):
            log.warning("provider_limits_moved", to=kind, reason=reason)

    async def _follow(self, notices: LimitSnapshot, asked: float) -> None:
        """Tell the desk that counts from now on what this process holds and has used."""
        if self._redis is not None and notices.desk.kind == "redis":
            self._redis.epoch = notices.desk.epoch
        before, self._notices, self._read_at = (self._notices, self._read_at), notices, asked
        try:
            await self._hold(self._used())
        except (BackendUnavailable, BackendStateLost):
            # Not done: the next reading finds the same epoch to be new.
            self._notices, self._read_at = before
            raise Unavailable("The desk that counts calls cannot be reached.") from None

    async def move_away(self, epoch: int, error: BackendUnavailable | BackendStateLost) -> None:
        """The desk of this epoch failed: see that another one counts, and go on with that."""
        if epoch == self.epoch and self._notices.desk.kind == "redis":
            forgot = isinstance(error, BackendStateLost)
            await self._move(epoch, "redis" if forgot else "database", str(error) or "Redis is away")
        await self.refresh()

    # --- slots

    async def introduce(self, credential: str) -> None:
        """See that the credential is listed for people."""
        if credential not in self._known:
            await know(self._database, credential)
            self._known.add(credential)

    def count(self, held: HeldSlot) -> None:
        """Remember a slot and what it reserved."""
        self.held[held.id] = held
        seconds = self._uses[held.credential]
        second = int(held.entered)
        seconds.setdefault(second, [0, 0])
        seconds[second][0] += 1
        seconds[second][1] += held.tokens
        for old in [known for known in seconds if known < second - WINDOW_SECONDS]:
            del seconds[old]

    async def _hold(self, used: Sequence[UsedSecond] = ()) -> None:
        """Tell the desk what is held at this moment."""
        held = list(self.held.values())
        if not held and not used:
            return
        self._holding = asyncio.get_running_loop().create_future()
        try:
            await self.desk.hold(held, used)
        finally:
            self._holding.set_result(None)

    async def leave(self, held: HeldSlot, more_tokens: int) -> None:
        """Give a slot back. If that fails it ends by itself, since it is not renewed any more."""
        self.held.pop(held.id, None)
        found = self._uses[held.credential].get(int(held.entered))
        if found is not None:
            found[1] = max(0, found[1] + more_tokens)
        if self._holding is not None and not self._holding.done():
            # Overtaken by what is being told now, the slot would come back to life until its lease ends.
            await asyncio.wait([self._holding])
        second = held.second if held.epoch == self.epoch else None
        with contextlib.suppress(BackendUnavailable, BackendStateLost):
            await self.desk.leave(held, self.limits(held.credential), second, more_tokens)

    def _used(self) -> list[UsedSecond]:
        now = int(time.monotonic())
        return [
            UsedSecond(credential, now - second, requests, tokens)
            for credential, seconds in self._uses.items()
            for second, (requests, tokens) in seconds.items()
            if now - second <= WINDOW_SECONDS
        ]

    # --- loops

    def _start(self) -> None:
        if not self._loops or any(loop.done() for loop in self._loops):
            self._stop()
            self._loops = [
                asyncio.create_task(self._read_loop(), name="runlane-limits-read"),
                asyncio.create_task(self._renew_loop(), name="runlane-limits-renew"),
            ]

    async def close(self) -> None:
        """End everything that is under way: a reading that outlives Redis' connections would open one anew."""
        ending = [task for task in (*self._loops, self._reading) if task is not None]
        self._stop()
        if self._reading is not None:
            self._reading.cancel()
        if ending:
            await asyncio.wait(ending)

    def _stop(self) -> None:
        for loop in self._loops:
            loop.cancel()
        self._loops = []

    @property
    def _idle(self) -> bool:
        return not self.held and time.monotonic() - self._used_at > _IDLE_SECONDS

    async def _read_loop(self) -> None:
        """Read the news. Policy for errors: go on; nothing is taken with old news."""
        while not self._idle:
            await asyncio.sleep(REFRESH_SECONDS)
            with contextlib.suppress(Unavailable):
                await self.refresh()

    async def _renew_loop(self) -> None:
        """Renew what is held, all at once. Policy for errors: move away from a desk that fails, then try again soon."""
        pause = RENEW_SECONDS
        while not self._idle:
            await asyncio.sleep(pause)
            pause = RENEW_SECONDS
            if not self.held:
                continue
            epoch = self.epoch
            try:
                await self._hold()
            except (BackendUnavailable, BackendStateLost) as error:
                pause = REFRESH_SECONDS
                with contextlib.suppress(Unavailable):
                    await self.move_away(epoch, error)
