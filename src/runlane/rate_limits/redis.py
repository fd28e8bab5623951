"""The desk over Redis: each decision is one script over one credential's keys, by the server's clock.

Whoever leaves rings for those who wait longest, so a free slot is taken within milliseconds. Keys carry the epoch of
the desk: what an earlier epoch left is never looked at. A marker tells whether Redis still knows what it was told; a
server that came back empty does not, and then nothing is granted before every process has said again what it holds.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from redis.exceptions import TimeoutError as RedisTimeout

from runlane.bus.redis_client import REDIS_ERRORS, RedisClient
from runlane.domain.ids import new_id
from runlane.domain.rate_limit import (
    WINDOW_SECONDS,
    CredentialLoad,
    LimitKind,
    LimitRefusal,
    ProviderLimits,
    counted_tokens,
    describe_refusal,
    seconds_until_room,
)
from runlane.rate_limits.backend import (
    ASK_SECONDS,
    LEASE_SECONDS,
    STALE_SECONDS,
    BackendStateLost,
    BackendUnavailable,
    HeldSlot,
    UsedSecond,
)
from runlane.store.rate_limits.slots import CredentialInUse, SlotGrant, SlotRequest

T = TypeVar("T")

_KEPT_SECONDS: Final = 3600
_SILENT_SECONDS: Final = 2.0
_FORGOTTEN: Final = -1
_PARTS: Final = ("state", "leases", "minute", "waiters", "seen")

# Shared by all scripts. The keys are the parts above; the first two arguments say whose process asks, and how long the
# keys are kept.
_COMMON: Final = f"""
local state, leases, minute, waiters, seen = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local holder, kept = ARGV[1], ARGV[2]
if redis.call('exists', state) == 0 then return {{{_FORGOTTEN}}} end
local clock = redis.call('time')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local second = tonumber(clock[1])
redis.call('zremrangebyscore', leases, '-inf', now)
local function keep()
  for _, key in ipairs(KEYS) do redis.call('expire', key, kept) end
end
local function ring(free)
  if free <= 0 then return end
  for _, name in ipairs(redis.call('zrange', waiters, 0, free - 1)) do
    local bell = state .. ':bell:' .. name
    if redis.call('llen', bell) == 0 then
      redis.call('rpush', bell, '1')
      redis.call('expire', bell, 5)
    end
  end
end
local function use(at, requests, tokens)
  redis.call('hincrby', minute, 'r' .. at, requests)
  if redis.call('hincrby', minute, 't' .. at, tokens) < 0 then redis.call('hset', minute, 't' .. at, 0) end
end
local function used()
  local requests, tokens, old = 0, 0, {{}}
  local fields = redis.call('hgetall', minute)
  for i = 1, #fields, 2 do
    if tonumber(string.sub(fields[i], 2)) < second - {WINDOW_SECONDS} then
      table.insert(old, fields[i])
    elseif string.sub(fields[i], 1, 1) == 'r' then
      requests = requests + tonumber(fields[i + 1])
    else
      tokens = tokens + tonumber(fields[i + 1])
    end
  end
  if #old > 0 then redis.call('hdel', minute, unpack(old)) end
  return requests, tokens
end
"""
_TAKE: Final = (
    _COMMON
    + """
local id, need, waited = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local lease, stale = tonumber(ARGV[6]), tonumber(ARGV[7])
local in_flight, per_minute, tokens_per_minute = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
for _, name in ipairs(redis.call('zrangebyscore', seen, '-inf', now - stale)) do
  redis.call('zrem', seen, name)
  redis.call('zrem', waiters, name)
end
-- The way here takes time: who was seen waiting before has not come later since then.
local since = math.min(now - waited, tonumber(redis.call('zscore', waiters, holder) or now))
redis.call('zrem', waiters, holder)
redis.call('zrem', leases, id)
local ahead = redis.call('zcount', waiters, '-inf', '(' .. since)
local flying = redis.call('zcard', leases)
local requests, tokens = used()
local slow = tonumber(redis.call('hget', state, 'slow_until') or '0') - now
local kind = ''
if slow > 0 then kind = 'slow'
elseif in_flight >= 0 and in_flight - flying <= ahead then kind = 'in_flight'
elseif per_minute >= 0 and per_minute - requests <= ahead then kind = 'requests'
elseif tokens_per_minute >= 0 and (ahead > 0 or tokens + need > tokens_per_minute) then kind = 'tokens'
end
if kind == '' then
  redis.call('zadd', leases, now + lease, id)
  use(second, 1, need)
  redis.call('zrem', seen, holder)
  if in_flight >= 0 then ring(in_flight - flying - 1) end
  keep()
  return {1, second}
end
redis.call('zadd', waiters, since, holder)
redis.call('zadd', seen, now, holder)
keep()
local fields = {}
if kind == 'requests' or kind == 'tokens' then fields = redis.call('hgetall', minute) end
return {0, second, kind, flying, requests, tokens, ahead, math.max(0, slow),
        redis.call('hget', state, 'slow_reason') or '', fields}
"""
)
_HOLD: Final = (
    _COMMON
    + """
local lease, ids, at = tonumber(ARGV[3]), tonumber(ARGV[4]), 5
for _ = 1, ids do
  redis.call('zadd', leases, now + lease, ARGV[at])
  at = at + 1
end
while at + 2 <= #ARGV do
  use(second - tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]))
  at = at + 3
end
keep()
return {1}
"""
)
_LEAVE: Final = (
    _COMMON
    + """
local id, began, more, in_flight = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
redis.call('zrem', leases, id)
if began > 0 and more ~= 0 then use(began, 0, more) end
ring(in_flight < 0 and 1 or in_flight - redis.call('zcard', leases))
keep()
return {1}
"""
)
_WITHDRAW: Final = (
    _COMMON
    + """
redis.call('zrem', waiters, holder)
redis.call('zrem', seen, holder)
redis.call('del', state .. ':bell:' .. holder)
ring(1)
return {1}
"""
)
_SLOW: Final = (
    _COMMON
    + """
local until_ms = now + tonumber(ARGV[3])
if until_ms > tonumber(redis.call('hget', state, 'slow_until') or '0') then
  redis.call('hset', state, 'slow_until', until_ms, 'slow_reason', ARGV[4])
end
keep()
return {1}
"""
)
_BUSY: Final = (
    _COMMON
    + """
local requests, tokens = used()
return {1, redis.call('zcard', leases), requests, tokens,
        redis.call('zcount', seen, '(' .. (now - tonumber(ARGV[3])), '+inf')}
"""
)
_CREATE: Final = "redis.call('hsetnx', KEYS[1], 'alive', '1') return redis.call('expire', KEYS[1], ARGV[1])"
_GET: Final = "return redis.call('get', KEYS[1])"
# It only grows: whoever is late must not make the others believe that something was lost.
_SET: Final = (
    "if tonumber(redis.call('get', KEYS[1]) or '0') < tonumber(ARGV[1]) then redis.call('set', KEYS[1], ARGV[1]) end "
    "return 0"
)


class RedisBackend:
    """Counts in Redis. `epoch` is the board's, and names the keys."""

    def __init__(self, client: RedisClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self.holder = new_id("lim")
        self.epoch = 0

    async def close(self) -> None:
        """Let go of Redis."""
        await self._client.close()

    async def take(self, ask: SlotRequest, limits: ProviderLimits) -> SlotGrant | LimitRefusal:
        need = counted_tokens(limits, ask.tokens)
        most = (limits.in_flight, limits.requests_per_minute, limits.tokens_per_minute)
        answer = await self._run(
            _TAKE,
            ask.credential,
            ask.lease_id,
            need,
            _ms(ask.waited_seconds),
            _ms(LEASE_SECONDS),
            _ms(STALE_SECONDS),
            *(-1 if limit is None else limit for limit in most),
        )
        if answer[0] == 1:
            return SlotGrant(int(answer[1]))
        second, kind, flying, requests, tokens, ahead, slow_ms, reason, fields = answer[1:]
        load = CredentialLoad(flying, requests, tokens, ahead, slow_ms / 1000, reason.decode("utf-8", "replace"))
        why = LimitKind(kind.decode())
        firm: float | None = None
        if why is LimitKind.REQUESTS:
            firm = seconds_until_room(_by_age(fields, b"r", second), limits.requests_per_minute or 0, 1)
        elif why is LimitKind.TOKENS:
            firm = seconds_until_room(_by_age(fields, b"t", second), limits.tokens_per_minute or 0, need)
        return describe_refusal(ask.credential, limits, load, why, ask.tokens, firm)

    async def wait(self, ask: SlotRequest, seconds: float) -> None:
        bell = f"{self._key(ask.credential, 'state')}:bell:{self.holder}"
        # A bell may be lost with its server, and a lease may end without anybody leaving.
        # And a server that froze never answers.
        timeout = max(0.01, min(seconds, ASK_SECONDS))

        async def listen() -> bool:
            async with asyncio.timeout(timeout + _SILENT_SECONDS):
                return await self._client.take([bell], timeout)

        await self._reach(listen)

    async def hold(self, held: Sequence[HeldSlot], used: Sequence[UsedSecond] = ()) -> None:
        ids: dict[str, list[str]] = defaultdict(list)
        uses: dict[str, list[int]] = defaultdict(list)
        for slot in held:
            ids[slot.credential].append(slot.id)
        for use in used:
            uses[use.credential] += (use.seconds_ago, use.requests, use.tokens)
        await asyncio.gather(
            *(
                self._run(_HOLD, name, _ms(LEASE_SECONDS), len(ids[name]), *ids[name], *uses[name])
                for name in sorted({*ids, *uses})
            )
        )

    async def leave(self, held: HeldSlot, limits: ProviderLimits, second: int | None, more_tokens: int) -> None:
        free = -1 if limits.in_flight is None else limits.in_flight
        await self._run(_LEAVE, held.credential, held.id, second or 0, more_tokens, free)

    async def withdraw(self, credential: str, holder: str) -> None:
        await self._run(_WITHDRAW, credential)

    async def slow_down(self, credential: str, seconds: float, reason: str) -> None:
        """Tell everybody at once what the database has decided."""
        await self._run(_SLOW, credential, _ms(seconds), reason)

    async def busy(self, credentials: Sequence[str]) -> Mapping[str, CredentialInUse]:
        found: dict[str, CredentialInUse] = {}
        for name in credentials:
            answer = await self._reach(lambda name=name: self._script(_BUSY, name, [_ms(STALE_SECONDS)]))
            # Looking must not begin anything: what nobody has used is not busy.
            found[name] = (
                CredentialInUse()
                if answer[0] == _FORGOTTEN
                else CredentialInUse(*(int(number) for number in answer[1:]))
            )
        return found

    async def marked(self) -> int | None:
        """The newest epoch that this server was told of; None if it has forgotten, or never knew."""
        value = await self._reach(lambda: self._client.script(_GET, [self._marker], []))
        return None if value is None else int(value)

    async def mark(self, epoch: int) -> None:
        """Remember the epoch for as long as everything else is remembered."""
        await self._reach(lambda: self._client.script(_SET, [self._marker], [epoch]))

    async def _run(self, script: str, credential: str, *arguments: str | int) -> Any:
        answer = await self._reach(lambda: self._script(script, credential, arguments))
        if answer[0] != _FORGOTTEN:
            return answer
        marked = await self.marked()
        if marked is None or marked < self.epoch:
            raise BackendStateLost("Redis has lost what it was told")
        await self._reach(lambda: self._client.script(_CREATE, [self._key(credential, "state")], [_KEPT_SECONDS]))
        answer = await self._reach(lambda: self._script(script, credential, arguments))
        if answer[0] == _FORGOTTEN:
            raise BackendStateLost("Redis loses what it is told")
        return answer

    async def _script(self, script: str, credential: str, arguments: Sequence[str | int]) -> Any:
        keys = [self._key(credential, part) for part in _PARTS]
        return await self._client.script(script, keys, [self.holder, _KEPT_SECONDS, *arguments])

    async def _reach(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except (TimeoutError, RedisTimeout) as error:
            # Not again: nobody may take from here for longer than a new desk waits before it begins.
            raise BackendUnavailable("no answer") from error
        except REDIS_ERRORS:
            # A connection that broke long ago is noticed by its next use; what matters is whether a new one works.
            try:
                return await call()
            except REDIS_ERRORS as error:
                raise BackendUnavailable(str(error) or type(error).__name__) from error

    @property
    def _marker(self) -> str:
        return f"{self._prefix}:limit:marker"

    def _key(self, credential: str, part: str) -> str:
        # One hash tag per credential: a script's keys live in one place of a cluster.
        return f"{{{self._prefix}:limit:{self.epoch}:{credential}}}:{part}"


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _by_age(fields: Sequence[bytes], letter: bytes, second: int) -> dict[int, int]:
    pairs = zip(fields[::2], fields[1::2], strict=True)
    return {second - int(name[1:]): int(value) for name, value in pairs if name[:1] == letter}
