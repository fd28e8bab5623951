"""Calls in flight, while the database counts them: leases, what each second of the last minute used, and who waits.

A decision is made under the credential's lock, from rows and never from a counter: a lease that is not renewed is not
counted, so a dead worker's slots come back by themselves. Looking whether there may be room takes no lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Text,
    bindparam,
    case,
    delete,
    func,
    select,
    true,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.rate_limit import (
    WINDOW_SECONDS,
    CredentialLoad,
    LimitKind,
    LimitRefusal,
    ProviderLimits,
    counted_tokens,
    default_limits,
    describe_refusal,
    refused_by,
    seconds_until_room,
)
from runlane.store.rate_limits.limits import provider_lock
from runlane.store.sql.database import Database, Session, read
from runlane.store.sql.expressions import lit, member, now_once, upsert
from runlane.store.sql.schema import (
    provider_leases,
    provider_limits,
    provider_seconds,
    provider_states,
    provider_waiters,
)
from runlane.store.sql.statement import Row, Statement

_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A process's oldest waiter for a credential asks for a slot."""

    credential: str
    lease_id: str
    holder: str
    tokens: int
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class SlotGrant:
    """It may call. `second` is the second of the desk's clock in which the call counts."""

    second: int


@dataclass(frozen=True, slots=True)
class CredentialInUse:
    """What a credential uses now, for people."""

    in_flight: int = 0
    requests: int = 0
    tokens: int = 0
    waiting: int = 0


_credential = bindparam("credential", type_=Text())
_holder = bindparam("holder", type_=Text())
_now = now_once()
_oldest_second = _now // lit(_SECOND_US) - lit(WINDOW_SECONDS)
_fresh = provider_waiters.c.seen_at > _now - bindparam("stale_us", type_=BigInteger())


def _one(column: ColumnElement[Any], *where: ColumnElement[bool]) -> Any:
    return select(column).where(*where).scalar_subquery()


def _of_limits(name: str) -> Any:
    return _one(provider_limits.c[name], provider_limits.c.credential == _credential).label(name)


def _of_states(name: str) -> Any:
    return _one(provider_states.c[name], provider_states.c.credential == _credential).label(name)


def _of_minute(name: str) -> Any:
    return _one(
        func.coalesce(func.sum(provider_seconds.c[name]), lit(0)),
        provider_seconds.c.credential == _credential,
        provider_seconds.c.second >= _oldest_second,
    ).label(name)


_leased = provider_leases.c.credential == _credential
_mine = _one(
    provider_waiters.c.since, provider_waiters.c.credential == _credential, provider_waiters.c.holder == _holder
)
_arrived = _now - bindparam("waited_us", type_=BigInteger())
_ROOM = Statement(
    "provider_room",
    select(
        _now.label("now"),
        *(_of_limits(name) for name in ("in_flight", "requests_per_minute", "tokens_per_minute", "updated_at")),
        _of_states("slow_until"),
        _of_states("slow_reason"),
        # Not its own: an answer that was lost is asked for again.
        _one(
            func.count(),
            _leased,
            provider_leases.c.expires_at > _now,
            provider_leases.c.id != bindparam("lease_id", type_=Text()),
        ).label("leases"),
        _one(func.count(), _leased, provider_leases.c.expires_at <= _now).label("expired"),
        _of_minute("requests"),
        _of_minute("tokens"),
        # Swept about once a minute, not in every second.
        _one(
            func.count(),
            provider_seconds.c.credential == _credential,
            provider_seconds.c.second < _oldest_second - lit(WINDOW_SECONDS),
        ).label("old"),
        _one(
            func.count(),
            provider_waiters.c.credential == _credential,
            provider_waiters.c.holder != _holder,
            _fresh,
            # The way here takes time: who was seen waiting before has not come later since then.
            provider_waiters.c.since < case((_mine < _arrived, _mine), else_=_arrived),
        ).label("ahead"),
    ),
)
_SECONDS = Statement(
    "provider_minute",
    select(
        (_now // lit(_SECOND_US) - provider_seconds.c.second).label("ago"),
        provider_seconds.c.requests,
        provider_seconds.c.tokens,
    ).where(provider_seconds.c.credential == _credential, provider_seconds.c.second >= _oldest_second),
)
_SWEEP = Statement(
    "sweep_provider_leases", delete(provider_leases).where(_leased, provider_leases.c.expires_at <= _now)
)
_FORGET_SECONDS = Statement(
    "forget_provider_seconds",
    delete(provider_seconds).where(
        provider_seconds.c.credential == _credential, provider_seconds.c.second < _oldest_second
    ),
)
_waiting = upsert(provider_waiters).values(
    credential=_credential,
    holder=_holder,
    since=_arrived,
    seen_at=_now,
)
_WAIT = Statement(
    "wait_for_provider",
    _waiting.on_conflict_do_update(
        index_elements=["credential", "holder"],
        set_={
            "since": case(
                (provider_waiters.c.since < _waiting.excluded.since, provider_waiters.c.since),
                else_=_waiting.excluded.since,
            ),
            "seen_at": _waiting.excluded.seen_at,
        },
    ),
)
_WITHDRAW = Statement(
    "withdraw_waiter",
    delete(provider_waiters).where(
        provider_waiters.c.credential == _credential,
        (provider_waiters.c.holder == _holder) | (provider_waiters.c.seen_at < _now - lit(60 * _SECOND_US)),
    ),
)
_GIVE_BACK = Statement("give_back_slots", delete(provider_leases).where(member(provider_leases.c.id, "ids")))


def _lease(batch: FromClause) -> Executable:
    statement = upsert(provider_leases).from_select(
        ["id", "credential", "expires_at"],
        select(batch.c.id, batch.c.credential, _now + batch.c.lease_us).select_from(batch).where(true()),
    )
    return statement.on_conflict_do_update(index_elements=["id"], set_={"expires_at": statement.excluded.expires_at})


_LEASE = Statement("lease_slots", _lease, {"id": Text(), "credential": Text(), "lease_us": BigInteger()})


def _use(batch: FromClause) -> Executable:
    statement = upsert(provider_seconds).from_select(
        ["credential", "second", "requests", "tokens"],
        select(batch.c.credential, batch.c.second, batch.c.requests, batch.c.tokens).select_from(batch).where(true()),
    )
    of = provider_seconds.c
    tokens = of.tokens + statement.excluded.tokens
    return statement.on_conflict_do_update(
        index_elements=["credential", "second"],
        set_={
            "requests": of.requests + statement.excluded.requests,
            "tokens": case((tokens < lit(0), lit(0)), else_=tokens),
        },
    )


_USE = Statement(
    "use_of_minute",
    _use,
    {"credential": Text(), "second": BigInteger(), "requests": Integer(), "tokens": BigInteger()},
)
_clock = select(_now.label("now"))
_CLOCK = Statement("provider_clock", _clock)
_live = provider_leases.c.expires_at > _now
_BUSY = Statement(
    "busy_providers",
    select(
        provider_states.c.credential,
        _one(func.count(), provider_leases.c.credential == provider_states.c.credential, _live).label("in_flight"),
        *(
            _one(
                func.coalesce(func.sum(provider_seconds.c[name]), lit(0)),
                provider_seconds.c.credential == provider_states.c.credential,
                provider_seconds.c.second >= _oldest_second,
            ).label(name)
            for name in ("requests", "tokens")
        ),
        _one(func.count(), provider_waiters.c.credential == provider_states.c.credential, _fresh).label("waiting"),
    ),
)


async def take_slot(
    database: Database, ask: SlotRequest, *, lease_seconds: float, stale_seconds: float
) -> SlotGrant | LimitRefusal:
    """Decide about one call, under the credential's lock; whoever is refused is remembered as waiting."""

    async def work(session: Session) -> SlotGrant | LimitRefusal:
        await session.lock(exclusive=[provider_lock(ask.credential)])
        row = (await session.fetch(_ROOM, **_room_of(ask, stale_seconds)))[0]
        limits, load = _limits(ask.credential, row), _load(row)
        kind = refused_by(limits, load, ask.tokens)
        if kind is not None:
            await session.fetch(
                _WAIT, credential=ask.credential, holder=ask.holder, waited_us=int(ask.waited_seconds * _SECOND_US)
            )
            firm = await _firm(session, ask, limits, kind)
            return describe_refusal(ask.credential, limits, load, kind, ask.tokens, firm)
        second = int(row["now"]) // _SECOND_US
        await session.fetch(_LEASE, [(ask.lease_id, ask.credential, int(lease_seconds * _SECOND_US))])
        await session.fetch(_USE, [(ask.credential, second, 1, counted_tokens(limits, ask.tokens))])
        if ask.waited_seconds > 0:
            await session.fetch(_WITHDRAW, credential=ask.credential, holder=ask.holder)
        if row["expired"]:
            await session.fetch(_SWEEP, credential=ask.credential)
        if row["old"]:
            await session.fetch(_FORGET_SECONDS, credential=ask.credential)
        return SlotGrant(second)

    return await database.transact(work)


async def look_for_room(database: Database, ask: SlotRequest, *, stale_seconds: float) -> tuple[bool, int]:
    """Whether asking is worth a transaction, and how many wait before this process; without any lock."""
    row = (await database.query(_ROOM, **_room_of(ask, stale_seconds)))[0]
    load = _load(row)
    return refused_by(_limits(ask.credential, row), load, ask.tokens) is None, load.ahead


async def lease_slots(database: Database, leases: Sequence[tuple[str, str]], lease_seconds: float) -> None:
    """Renew these leases (id, credential) in one statement, or make them where they are not known."""
    lease_us = int(lease_seconds * _SECOND_US)
    await read(database, _LEASE, [(lease_id, credential, lease_us) for lease_id, credential in sorted(leases)])


async def add_use(database: Database, used: Sequence[tuple[str, int, int, int]]) -> None:
    """Count use (credential, seconds ago, requests, tokens) that was counted elsewhere before."""

    async def work(session: Session) -> None:
        second = int((await session.fetch(_CLOCK))[0]["now"]) // _SECOND_US
        sums: dict[tuple[str, int], tuple[int, int]] = {}
        for credential, ago, requests, tokens in used:
            old = sums.get((credential, second - ago), (0, 0))
            sums[credential, second - ago] = (old[0] + requests, old[1] + tokens)
        await session.fetch(_USE, [(*key, *value) for key, value in sorted(sums.items())])

    await database.transact(work)


async def give_back(
    database: Database, credential: str, lease_ids: Sequence[str], second: int | None, more_tokens: int
) -> None:
    """End leases, and correct the tokens of the second in which a call began."""

    async def work(session: Session) -> None:
        await session.fetch(_GIVE_BACK, ids=session.texts(sorted(lease_ids)))
        if second is not None and more_tokens:
            await session.fetch(_USE, [(credential, second, 0, more_tokens)])

    await database.transact(work)


async def withdraw(database: Database, credential: str, holder: str) -> None:
    """This process waits no longer."""

    async def work(session: Session) -> None:
        await session.fetch(_WITHDRAW, credential=credential, holder=holder)

    await database.transact(work)


async def read_busy(database: Database, stale_seconds: float) -> Mapping[str, CredentialInUse]:
    """What every known credential uses now, as the database counts it."""
    rows = await database.query(_BUSY, stale_us=int(stale_seconds * _SECOND_US))
    return {
        row["credential"]: CredentialInUse(
            int(row["in_flight"]), int(row["requests"]), int(row["tokens"]), int(row["waiting"])
        )
        for row in rows
    }


async def _firm(session: Session, ask: SlotRequest, limits: ProviderLimits, kind: LimitKind) -> float | None:
    if kind not in (LimitKind.REQUESTS, LimitKind.TOKENS):
        return None
    rows = await session.fetch(_SECONDS, credential=ask.credential)
    if kind is LimitKind.REQUESTS:
        used = {int(row["ago"]): int(row["requests"]) for row in rows}
        return seconds_until_room(used, limits.requests_per_minute or 0, 1)
    used = {int(row["ago"]): int(row["tokens"]) for row in rows}
    return seconds_until_room(used, limits.tokens_per_minute or 0, counted_tokens(limits, ask.tokens))


def _room_of(ask: SlotRequest, stale_seconds: float) -> dict[str, Any]:
    return {
        "credential": ask.credential,
        "lease_id": ask.lease_id,
        "holder": ask.holder,
        "waited_us": int(ask.waited_seconds * _SECOND_US),
        "stale_us": int(stale_seconds * _SECOND_US),
    }


def _limits(credential: str, row: Row) -> ProviderLimits:
    if row["updated_at"] is None:
        return default_limits(credential)
    return ProviderLimits(row["in_flight"], row["requests_per_minute"], row["tokens_per_minute"])


def _load(row: Row) -> CredentialLoad:
    return CredentialLoad(
        in_flight=int(row["leases"]),
        requests=int(row["requests"]),
        tokens=int(row["tokens"]),
        ahead=int(row["ahead"]),
        slow_seconds=max(0.0, ((row["slow_until"] or 0) - row["now"]) / _SECOND_US),
        slow_reason=row["slow_reason"] or "",
    )
